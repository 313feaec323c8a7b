"""Build each wheel twice, at two times, in two folders and two containers, and compare the files."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.errors import NotReproducible, UsageError
from dih20.image import engine
from dih20.lock import Lock
from dih20.paths import build_dir, shown
from dih20.plan import Action, Plan
from dih20.rebuild.wheel_difference import WheelDifference, compare_wheels
from dih20.wheels.build import Builder, Limits
from dih20.wheels.command import newest_image, torch_tag
from dih20.wheels.evidence import label_of
from dih20.wheels.image_facts import ImageFacts, facts_of
from dih20.wheels.plan import Skipped, Wanted
from dih20.wheels.recipes import Recipe, load_all, select
from dih20.wheels.store import Store, StoredWheel
from dih20.wheels.wheel_set import look_at

if TYPE_CHECKING:
    import docker

_LEAST_APART_S = 2.0  # a zip archive counts time in steps of two seconds


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One wheel, built twice. The first one may have been in the store already."""

    name: str
    first: StoredWheel
    second: StoredWheel
    was_stored: bool
    difference: WheelDifference | None

    def as_dict(self) -> dict[str, Any]:
        first, second = (
            {
                "sha256": wheel.sha256,
                "date": wheel.build["date"],
                "seconds": wheel.build["seconds"],
                "image": wheel.build["image"],
            }
            for wheel in (self.first, self.second)
        )
        return {
            "name": self.name,
            "file": self.first.path.name,
            "identity": self.first.identity,
            "equal": self.difference is None,
            "first": {**first, "from": "the store" if self.was_stored else "this run"},
            "second": second,
            **({"difference": self.difference.as_dict()} if self.difference else {}),
        }


@dataclass(kw_only=True)
class WheelCheck:
    """Builds pairs for one image and one lock.

    Args:
        store: its wheels serve as the first of two where the identity is the same; nothing is added to it.
        other_image: the second of two is built in this one; without it in the same image.
    """

    ui: Console
    client: docker.DockerClient
    image: str
    lock: Lock
    store: Store = field(default_factory=Store)
    recipes: Sequence[Recipe] | None = None
    other_image: str = ""
    scratch: Path = field(default_factory=lambda: build_dir() / "rebuild")

    def considered(self, only: str) -> list[Wanted | Skipped]:
        """Give what the recipes ask for on this image."""
        return look_at(
            self.client, self.image, self.lock, only=only or None, recipes=self.recipes, store=self.store
        )[1]  # fmt: skip

    def pair(self, wanted: Wanted, *, number: int = 1) -> Pair:
        """Build one wheel twice, or once when the store has the first; only the first pair takes from there."""
        folder = self.scratch / wanted.recipe.name
        shutil.rmtree(folder, ignore_errors=True)
        stored = wanted.hit if number == 1 else None
        with self.ui.step("compare", f"two builds of {wanted.recipe.name}") as step:
            first = stored or self._build(wanted, self.image, folder / "first")
            time.sleep(_LEAST_APART_S)
            image = self.other_image or self.image
            second = self._build(wanted, image, folder / "another" / "place")
            difference = compare_wheels(first.path, second.path)
            step.status = "failed" if difference else "ok"
            step.note = difference.text if difference else f"both are {first.sha256[:12]}"
        if not difference:
            shutil.rmtree(folder, ignore_errors=True)
        return Pair(
            name=wanted.recipe.name,
            first=first,
            second=second,
            was_stored=stored is not None,
            difference=difference,
        )

    def _build(self, wanted: Wanted, image: str, folder: Path) -> StoredWheel:
        builder = Builder(
            ui=self.ui,
            client=self.client,
            facts=facts_of(self.client, image),
            lock=self.lock,
            store=Store(folder / "wheels"),
            limits=Limits(),
            scratch=folder,
        )
        return builder.build(wanted)


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
        wanted = [item for item in considered if isinstance(item, Wanted)]
        pairs = [checker.pair(item, number=n + 1) for item in wanted for n in range(times)]
        facts = facts_of(client, chosen)
    finally:
        client.close()
    if evidence:
        write_evidence(ui, Path(evidence), facts, pairs)
    return judged(ui, chosen, pairs)


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


def judged(ui: Console, image: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Give the outcome as plain values, or raise when two builds of a wheel differ."""
    rows = [
        [p.name, p.first.sha256[:12], p.second.sha256[:12], "differ" if p.difference else "equal"]
        for p in pairs
    ]
    ui.table(["wheel", "first", "second", "outcome"], rows)
    result = {"image": image, "pairs": [pair.as_dict() for pair in pairs]}
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
    equal = sum(pair.difference is None for pair in pairs)
    content = {
        "what": "each wheel built twice: another time, another work folder, another container",
        "label": label_of(facts),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {"cores": os.cpu_count(), "load_average": round(os.getloadavg()[0], 1)},
        "image": {"python": facts.python_tag, "torch": facts.torch, "gcc": facts.gcc},
        "repeat": f"./inv rebuild --check wheels --only {names}",
        "equal": f"{equal} of {len(pairs)}",
        "pairs": [pair.as_dict() for pair in pairs],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    ui.line(f"  evidence in {shown(path.resolve())}")
