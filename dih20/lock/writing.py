"""`inv lock`: resolve what the image configuration wants and write di.lock.yaml."""

from __future__ import annotations

from typing import Any

from dih20.config import load_image, load_mirrors
from dih20.config.image import ImageConfig
from dih20.console import Console
from dih20.errors import LockError, Unresolved
from dih20.lock.base_pins import AptRoots
from dih20.lock.canonical import render, write
from dih20.lock.files import UNRESOLVED
from dih20.lock.model import Lock
from dih20.lock.sections import Resolver
from dih20.lock.wants import BASES, SECTIONS, chosen, parts_of, wanted_by
from dih20.paths import lock_file, shown
from dih20.plan import Action, Plan


def make_plan(
    lock: Lock | None, image: ImageConfig, sections: tuple[str, ...], bases: tuple[str, ...] = BASES
) -> Plan:
    """Give a line per part: stale, missing, or resolved anew because asked for."""
    actions = []
    for part in (part for name in sections for part in parts_of(name, bases)):
        noted = lock.wants.get(part) if lock else None
        if noted is None:
            why = "never resolved"
        elif noted != wanted_by(part, image):
            why = "what is wanted has changed"
        else:
            why = "answers what is wanted; newer versions may exist"
        actions.append(Action(verb="resolve", target=part, why=why))
    actions.append(Action(verb="write", target=shown(lock_file())))
    return Plan(title=f"lock the inputs of image {image.name}", actions=tuple(actions))


def write_lock(
    ui: Console, *, only: str, base: str, image_name: str, only_plan: bool
) -> dict[str, Any]:
    """Resolve the chosen sections and replace the lock in one step."""
    sections, bases = chosen(only, SECTIONS, "--only"), chosen(base, BASES, "--base")
    image, mirrors = load_image(image_name), load_mirrors()
    before = Lock.load() if lock_file().exists() else None
    plan = make_plan(before, image, sections, bases)
    ui.plan(plan)
    if only_plan:
        return plan.as_dict()
    lock = before or Lock(image=image.name)
    lock = lock.model_copy(update={"image": image.name})
    if "apt" in sections and "base" not in sections and not set(bases) & set(lock.bases):
        raise LockError(
            found="the lock holds no base, so apt cannot know what is there already",
            expected="bases, resolved before apt",
            remedy="run `./inv lock --only base,apt`",
        )
    with AptRoots(mirrors) as roots:
        resolver = Resolver(ui, image, mirrors, roots, bases)
        for name in sections:
            lock = resolver.section(name, lock)
    known = {part for section in SECTIONS for part in parts_of(section)}
    lock = lock.model_copy(update={"wants": {k: v for k, v in lock.wants.items() if k in known}})
    result = _keep(ui, before, lock)
    if (only or base) and "vllm" in bases:
        _insist(ui, lock, sections, named=base != "")
    return result


def _keep(ui: Console, before: Lock | None, lock: Lock) -> dict[str, Any]:
    path = lock_file()
    same = before is not None and path.read_text(encoding="utf-8") == render(lock)
    with ui.step("write", shown(path)) as step:
        if same:
            step.status, step.note = "hit", "nothing moved"
        else:
            write(lock, path)
            step.note = f"identity {lock.identity[:12]}"
    return {
        "lock": shown(path),
        "identity": lock.identity,
        "changed": not same,
        "wants": dict(lock.wants),
    }


def _insist(ui: Console, lock: Lock, sections: tuple[str, ...], *, named: bool) -> None:
    """Raise when the registry base was asked for by name and could not be resolved."""
    if "base" in sections and not lock.base("vllm").is_resolved:
        what, which = "base vllm", "base"
    elif named and "apt" in sections and lock.apt.get("vllm") == UNRESOLVED:
        what, which = "apt packages on vllm", "apt"
    else:
        return
    why = next((step.note for step in ui.steps if what in step.target), "").removesuffix(
        "; the lock keeps unresolved"
    )
    raise Unresolved(
        found=f"{what}: unresolved: {why}",
        expected="its pins; everything else that was asked for is written",
        remedy=f"run `./inv lock --only {which}` where the registry is reachable, then commit di.lock.yaml",
    )
