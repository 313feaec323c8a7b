"""`inv lock`: resolve what the image configuration wants and write di.lock.yaml."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from dih20.config import load_image, load_mirrors
from dih20.config.image import ImageConfig
from dih20.console import Console
from dih20.errors import LockError, Unresolved
from dih20.lock.base_pins import AptRoots
from dih20.lock.canonical import render, write
from dih20.lock.files import UNRESOLVED
from dih20.lock.keeping import Keeping
from dih20.lock.model import Lock
from dih20.lock.moves import ABSENT, Move, moves, refuse_replaced
from dih20.lock.sections import Resolver
from dih20.lock.wants import BASES, SECTIONS, chosen, parts_of
from dih20.paths import lock_file, shown
from dih20.plan import Action, Plan


def make_plan(
    keeping: Keeping,
    image: ImageConfig,
    sections: tuple[str, ...],
    bases: tuple[str, ...] = BASES,
) -> Plan:
    """Give a line per part: kept as it is, or resolved and why."""
    actions = []
    for part in (part for name in sections for part in parts_of(name, bases)):
        if why := keeping.why(part, image):
            actions.append(Action(verb="resolve", target=part, why=why))
        else:
            why = "answers what is wanted; `--upgrade` takes newer versions"
            actions.append(Action(verb="keep", target=part, why=why, needed=False))
    needed = any(action.needed for action in actions)
    actions.append(Action(verb="write", target=shown(lock_file()), needed=needed))
    return Plan(title=f"lock the inputs of image {image.name}", actions=tuple(actions))


def write_lock(
    ui: Console,
    *,
    only: str,
    base: str,
    image_name: str,
    only_plan: bool,
    upgrade: bool | str = False,
) -> dict[str, Any]:
    """Resolve what is stale or may move, show what moves, and replace the lock in one step.

    Args:
        upgrade: False keeps every pin that is still valid; True lets all move; else names that may.
    """
    sections, bases = chosen(only, SECTIONS, "--only"), chosen(base, BASES, "--base")
    image, mirrors = load_image(image_name), load_mirrors()
    before = Lock.load() if lock_file().exists() else None
    keeping = Keeping.of(before, upgrade)
    keeping.check_names([part for name in sections for part in parts_of(name, bases)])
    plan = make_plan(keeping, image, sections, bases)
    ui.plan(plan)
    if only_plan and not keeping.is_upgrade:
        return plan.as_dict()
    todo = [action.target for action in plan.actions if action.verb == "resolve"]
    with AptRoots(mirrors) as roots:
        resolver = Resolver(ui, image, mirrors, roots, keeping)
        lock = _resolved(resolver, todo, before, bases, with_ci="ci" in sections)
    moved = moves(before, lock)
    show_moves(ui, moved, asked=keeping.is_upgrade)
    refuse_replaced([move for move in moved if move.name not in (keeping.moving or ())])
    if only_plan:
        actions = [move.action() for move in moved]
        actions.append(Action(verb="write", target=shown(lock_file()), needed=bool(moved)))
        return Plan(title="what an upgrade would move", actions=tuple(actions)).as_dict()
    result = _keep(ui, before, lock) | {"moves": [move.action().details for move in moved]}
    if (only or base) and "vllm" in bases:
        _insist(ui, lock, sections, named=base != "")
    return result


def _resolved(
    resolver: Resolver,
    todo: list[str],
    before: Lock | None,
    bases: tuple[str, ...],
    *,
    with_ci: bool = True,
) -> Lock:
    """Give the lock with these parts resolved, and with what stands on a base that moved."""
    lock = before or Lock(image=resolver.image.name)
    lock = lock.model_copy(update={"image": resolver.image.name})
    if any(part.startswith("apt ") for part in todo) and not set(bases) & (
        set(lock.bases) | {part.removeprefix("base ") for part in todo if part.startswith("base ")}
    ):
        raise LockError(
            found="the lock holds no base, so apt cannot know what is there already",
            expected="bases, resolved before apt",
            remedy="run `./inv lock --only base,apt`",
        )
    for part in (part for section in SECTIONS for part in parts_of(section)):
        if part in todo or (_follows(part, before, lock) and (part != "ci" or with_ci)):
            lock = resolver.part(part, lock)
    known = {part for section in SECTIONS for part in parts_of(section)}
    return lock.model_copy(update={"wants": {k: v for k, v in lock.wants.items() if k in known}})


def _follows(part: str, before: Lock | None, lock: Lock) -> bool:
    """Say whether packages were resolved on a base that has moved since: what it holds is other now."""
    section, _, base = part.partition(" ")
    if section == "apt":
        was, now = before.bases.get(base) if before else None, lock.bases.get(base)
        return was is not None and now is not None and was.digest != now.digest and base in lock.apt
    return section == "ci" and lock.is_ci_on_another_base


def show_moves(ui: Console, moved: list[Move], *, asked: bool) -> None:
    """Print old -> new of every pin that moves, comes or goes; a group that is all new takes one row."""
    if moved:
        rows = []
        for where, group in groupby(moved, key=lambda move: move.where):
            pins = list(group)
            if len(pins) > 3 and all(pin.verb == "add" for pin in pins):
                rows.append([where, f"{len(pins)} packages", ABSENT, "locked"])
            else:
                rows += [[where, pin.name, pin.old, pin.new] for pin in pins]
        ui.table(["where", "name", "lock says", "now"], rows, title=f"{len(moved)} pins move")
    elif asked:
        ui.line("nothing would move: every pin is the newest that fits")


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
