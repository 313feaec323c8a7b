"""What `inv engine-check` does around the check itself: the plan, and torch where it is missing."""

from __future__ import annotations

from typing import Any

from dih20 import groups
from dih20.console import Console
from dih20.engine_check.options import Options
from dih20.engine_check.results import record_path
from dih20.engine_check.stages import chosen
from dih20.paths import shown
from dih20.plan import Action, Plan


def run_check(
    ui: Console, given: dict[str, Any], *, prepare: bool, merge: bool, only_plan: bool
) -> dict[str, Any]:
    """Act, or say what would be done."""
    options = Options(**given)
    if only_plan:
        plan = make_plan(options, prepare=prepare, merge=merge)
        ui.plan(plan)
        return plan.as_dict()
    groups.ensure(ui, "torch")
    from dih20.engine_check.__main__ import act

    return act(options, ui.line, prepare=prepare, merge=merge)


def make_plan(options: Options, *, prepare: bool, merge: bool) -> Plan:
    """Give what would be written; whether a stage passed already is known once its sources are read."""
    if prepare:
        target = f"the reference's values to {shown(options.reference)}"
        return Plan(title="engine-check", actions=(Action(verb="write", target=target),))
    if merge:
        target = f"evidence from the records in {shown(options.folder)}"
        return Plan(title="engine-check", actions=(Action(verb="write", target=target),))
    actions = tuple(
        Action(
            verb="run",
            target=f"stage {each.letter}: {each.title}",
            why=f"writes {each.letter} to {shown(record_path(options.folder, each.letter))}",
            needed=True if options.again else None,
        )
        for each in chosen(options.stage)
    )
    return Plan(title="engine-check", actions=actions)
