"""Plans are values: what is pending, whether anything is, and how JSON shows them."""

from __future__ import annotations

from dih20.plan import Action, Plan

DONE = Action(verb="create", target="a", needed=False)
TODO = Action(verb="create", target="b", details={"size_bytes": 4})
UNKNOWN = Action(verb="create", target="c", needed=None)


def test_a_plan_with_everything_done_is_a_noop() -> None:
    assert Plan(title="t", actions=(DONE, DONE)).is_noop
    assert Plan(title="t", actions=()).is_noop


def test_an_unknown_action_is_neither_done_nor_left_out() -> None:
    plan = Plan(title="t", actions=(DONE, UNKNOWN, TODO))
    assert not plan.is_noop
    assert list(plan.pending()) == [UNKNOWN, TODO]


def test_json_shows_details_only_where_there_are_some() -> None:
    actions = Plan(title="t", actions=(DONE, TODO)).as_dict()["actions"]
    assert "details" not in actions[0]
    assert actions[1]["details"] == {"size_bytes": 4}
