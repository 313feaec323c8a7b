"""Facts and a wish in, steps out: no host, no engine. Cases are JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dih20.config import HostConfig
from dih20.deploy.plan import conflict, load_by, make_plan
from dih20.deploy.wanted import Wanted
from dih20.hosts.facts import Container, Engine, HostFacts, Image
from tests.deploy.stand import TAG, make_tree, wanted_for, wheel_of
from tests.hosts.places import healthy_facts

CASES = sorted((Path(__file__).parent / "cases" / "plan").glob("*.json"))
OURS = {"dih20.owner": "dih20", "dih20.config": "0" * 64}


@pytest.fixture
def wish(tmp_path: Path) -> Wanted:
    wheel = wheel_of(Path("deep_gemm-2.8.2-cp312-cp312-linux_x86_64.whl"))
    return wanted_for(wheels=(wheel,), tree=make_tree(tmp_path / "tree"))


def facts_of(case: dict[str, Any], wish: Wanted) -> HostFacts | None:
    """Fill in a case: {config} is the wanted hash, {runtime} the wanted tag, {wheels} the wheel set."""
    if case["facts"] is None:
        return None
    names = {"{config}": wish.config, "{runtime}": wish.runtime_tag, "{wheels}": wish.wheel_set}
    text = json.dumps(case["facts"])
    for name, value in names.items():
        text = text.replace(name, value)
    told = json.loads(text)
    more: dict[str, Any] = {}
    if "containers" in told:
        more["containers"] = tuple(Container(**entry) for entry in told["containers"])
    if "images" in told:
        more["images"] = tuple(
            Image(**{**entry, "tags": tuple(entry["tags"]), "layers": tuple(entry["layers"])})
            for entry in told["images"]
        )
    more["is_busy"] = told.get("busy", False)
    if "driver_status" in told:
        pairs = tuple((a, b) for a, b in told["driver_status"])
        more["engine"] = Engine(version=told["version"], root_dir="/d", driver_status=pairs)
    return healthy_facts(**more)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_facts_lead_to_exactly_the_steps_of_their_case(path: Path, wish: Wanted) -> None:
    case = json.loads(path.read_text())
    facts = facts_of(case, wish)
    plan = make_plan(facts, wish, replace=case.get("replace", False))
    steps = [f"{action.mark} {action.verb} {action.target}" for action in plan.actions]
    for name, value in (("{runtime}", wish.runtime_tag), ("{tag}", TAG)):
        case["steps"] = [step.replace(name, value) for step in case["steps"]]
    assert steps == case["steps"]
    assert plan.is_noop == case.get("noop", False)
    found = conflict(facts, wish, replace=case.get("replace", False)) if facts else None
    if "conflict" in case:
        assert found is not None
        assert case["conflict"] in found.found
    else:
        assert found is None


def test_every_step_has_a_question_mark_while_the_host_has_not_answered(wish: Wanted) -> None:
    plan = make_plan(None, wish)
    assert {action.mark for action in plan.actions} == {"?"}
    verbs = {action.verb for action in plan.actions}
    assert {"lock", "transfer", "load", "install", "create", "start", "read back", "check"} <= verbs


def test_a_plan_shows_the_layers_that_travel_in_its_details(wish: Wanted) -> None:
    image = Image(id="sha256:1", tags=("base:1",), layers=("sha256:a",))
    plan = make_plan(healthy_facts(images=(image,)), wish)
    (transfer,) = [a for a in plan.actions if a.target.startswith("2 of 3 layers")]
    assert transfer.details["send"] == ["sha256:b", "sha256:c"]
    assert transfer.details["skip"] == ["sha256:a"]


@pytest.mark.parametrize(
    ("version", "zstd", "way"),
    [
        ("28.2.2", "", "engine"),
        ("23.0.0", "/usr/bin/zstd", "engine"),
        ("20.10.24+dfsg1", "/usr/bin/zstd", "zstd"),
        ("20.10.24+dfsg1", "", "connection"),
    ],
)
def test_the_host_unpacks_by_the_best_way_it_has(version: str, zstd: str, way: str) -> None:
    from dataclasses import replace

    facts = healthy_facts(engine=Engine(version=version))
    assert load_by(replace(facts, system=replace(facts.system, zstd=zstd))) == way


def test_the_configuration_hash_moves_with_whatever_the_container_is_made_from(
    wish: Wanted, tmp_path: Path
) -> None:
    values = wish.host.model_dump()

    def config(**more: Any) -> str:
        host = HostConfig.model_validate({**values, **more})
        return wanted_for(host, wheels=wish.wheels, tree=wish.tree).config

    assert config() == wish.config
    other: list[dict[str, Any]] = [{"memlock": 1}, {"mounts": []}, {"gpus": 4}]
    for change in [*other, {"log": {"max_size": "1g"}}]:
        assert config(**change) != wish.config, change
    same: list[dict[str, Any]] = [{"connect_timeout_s": 3}, {"ports": [9000]}, {"user": "someone"}]
    for change in same:
        assert config(**change) == wish.config, change
    other_wheel = wheel_of(Path("a-1-py3-none-any.whl"), sha256="1" * 64)
    assert wanted_for(wish.host, wheels=(other_wheel,), tree=wish.tree).config != wish.config
    assert wanted_for(wish.host, wheels=wish.wheels).config != wish.config


def test_a_container_in_the_middle_of_its_removal_is_waited_for(wish: Wanted) -> None:
    going = Container(id="c" * 64, name="di-h20", status="removing", image_id="x", labels=OURS)
    facts = healthy_facts(containers=(going,))
    assert conflict(facts, wish, replace=False) is None
    assert any(a.verb == "wait for" for a in make_plan(facts, wish).actions)


def test_a_host_that_does_not_answer_gets_its_plan_shown_and_then_its_error(
    wish: Wanted, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from dih20.console import Console
    from dih20.deploy.apply import deploy
    from dih20.errors import ConnectFailed
    from dih20.rehearse.sshd import free_port

    silent = wish.host.model_copy(update={"address": "127.0.0.1", "port": free_port()})
    with pytest.raises(ConnectFailed) as failed:
        deploy(Console(), None, wanted_for(silent, wheels=wish.wheels), only_plan=True)  # type: ignore[arg-type]
    shown = capsys.readouterr().out
    assert "? create container di-h20" in shown
    assert "? transfer wheel deep_gemm 2.8.2" in shown
    assert failed.value.exit_code == 41
