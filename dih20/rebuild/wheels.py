"""What `inv rebuild --check wheels` does: pairs of builds, a table, evidence, and an error that names what differs."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dih20.console import Console
from dih20.errors import NotReproducible, UsageError
from dih20.image import engine
from dih20.lock import Lock
from dih20.paths import build_dir, shown
from dih20.plan import Action, Plan
from dih20.rebuild.wheel_pairs import Pair, WheelCheck
from dih20.wheels.command import newest_image, torch_tag
from dih20.wheels.evidence import label_of
from dih20.wheels.image_facts import ImageFacts, facts_of
from dih20.wheels.plan import Skipped, Wanted
from dih20.wheels.recipes import load_all, select


def check(
    ui: Console,
    *,
    only: str = "",
    times: int = 1,
    evidence: str = "",
    plan_only: bool = False,
    image: str = "",
    other_image: str = "",
) -> dict[str, Any]:
    """Carry out `inv rebuild --check wheels`; raise NotReproducible that names what differs.

    Wheels that need torch are checked where the image has it, or when `only` names them: torch is
    then put on the image first.
    """
    if times < 1:
        raise UsageError(found=f"--times {times}", expected="one or more", remedy="correct it")
    lock = Lock.load()
    client = engine.connect()
    try:
        chosen = image or newest_image(client, lock)
        if only and any(recipe.build.torch for recipe in select(load_all(), only)):
            chosen = torch_tag(ui, client, chosen, lock, plan_only=plan_only)
        checker = WheelCheck(ui=ui, client=client, image=chosen, lock=lock, other_image=other_image)
        considered = checker.considered(only)
        plan = as_plan(chosen, considered, times)
        ui.plan(plan)
        if plan_only:
            return {"image": chosen, "plan": plan.as_dict()}
        wanted = wanted_of(chosen, considered)
        pairs = [checker.pair(item, number=n + 1) for item in wanted for n in range(times)]
        facts = facts_of(client, chosen)
    finally:
        client.close()
    if evidence:
        write_evidence(ui, Path(evidence), facts, pairs)
    return judged(ui, chosen, pairs, not_compared(considered))


def as_plan(image: str, considered: Sequence[Wanted | Skipped], times: int) -> Plan:
    """Give the printable plan."""
    actions = [
        Action(verb="leave", target=item.recipe.name, why=item.note, needed=False)
        if isinstance(item, Skipped)
        else Action(
            verb="build twice",
            target=item.recipe.name,
            why=f"{times} time{'s' if times > 1 else ''}"
            + (", the first one is in the store" if item.hit else ""),
        )
        for item in considered
    ]
    return Plan(title=f"compare two builds of each wheel in {image}", actions=tuple(actions))


def wanted_of(image: str, considered: Sequence[Wanted | Skipped]) -> list[Wanted]:
    """Give what is to be built; raise UsageError where there is nothing: a check of nothing is no success."""
    if wanted := [item for item in considered if isinstance(item, Wanted)]:
        return wanted
    reasons = "; ".join(f"{name}: {note}" for name, note in not_compared(considered).items())
    raise UsageError(
        found=f"no wheel to compare in {image}: {reasons or 'no recipe was asked for'}",
        expected="one recipe or more that can be built there",
        remedy="name one with --only; wheels that need torch get the lock's that way",
    )


def not_compared(considered: Sequence[Wanted | Skipped]) -> dict[str, str]:
    """Give why each recipe, or a part of it, is left out."""
    notes: dict[str, str] = {}
    for item in considered:
        if isinstance(item, Skipped):
            before = notes.get(item.recipe.name)
            notes[item.recipe.name] = f"{before}; {item.note}" if before else item.note
    return notes


def judged(
    ui: Console, image: str, pairs: Sequence[Pair], left_out: Mapping[str, str]
) -> dict[str, Any]:
    """Give the outcome as plain values, with what was not compared; raise when two builds differ."""
    rows = [
        [p.name, p.first.sha256[:12], p.second.sha256[:12], "differ" if p.difference else "equal"]
        for p in pairs
    ]
    rows += [[name, "-", "-", f"not compared: {note}"] for name, note in left_out.items()]
    ui.table(["wheel", "first", "second", "outcome"], rows)
    result = {
        "image": image,
        "pairs": [pair.as_dict() for pair in pairs],
        "not_compared": dict(left_out),
    }
    bad = [pair for pair in pairs if pair.difference]
    if bad:
        raise NotReproducible(
            found="; ".join(f"{p.name}: {p.difference.text}" for p in bad if p.difference),
            expected="the same sha256 from the same inputs, whenever and wherever the build ran",
            remedy="see which file or section holds a time, a path or an order; both builds are kept in "
            f"{shown(build_dir() / 'rebuild')}",
            details=result,
        )
    return result


def write_evidence(ui: Console, path: Path, facts: ImageFacts, pairs: Sequence[Pair]) -> None:
    """Write the pairs to a JSON file, with where they were built and how to repeat it."""
    names = ",".join(dict.fromkeys(pair.name for pair in pairs))
    times = max((sum(p.name == pair.name for p in pairs) for pair in pairs), default=1)
    equal = sum(pair.difference is None for pair in pairs)
    content = {
        "what": "each wheel built twice: another time, another work folder, another container",
        "label": label_of(facts),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {"cores": os.cpu_count(), "load_average": round(os.getloadavg()[0], 1)},
        "image": {"python": facts.python_tag, "torch": facts.torch, "gcc": facts.gcc},
        "repeat": f"./inv rebuild --check wheels --only {names} --times {times}",
        "equal": f"{equal} of {len(pairs)}",
        "pairs": [pair.as_dict() for pair in pairs],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    ui.line(f"  evidence in {shown(path.resolve())}")
