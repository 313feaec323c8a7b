"""`inv lock`: resolve what the image configuration wants and write di.lock.yaml."""

from __future__ import annotations

from typing import Any

from dih20.config import load_image, load_mirrors
from dih20.config.image import ImageConfig
from dih20.console import Console
from dih20.errors import LockError, Unresolved, UsageError
from dih20.lock.base_pins import AptRoots
from dih20.lock.canonical import render, write
from dih20.lock.model import Lock
from dih20.lock.sections import SECTIONS, Resolver, wanted_by
from dih20.paths import lock_file, shown
from dih20.plan import Action, Plan


def chosen_sections(only: str) -> tuple[str, ...]:
    """Give the sections that --only names, in the order they are resolved."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in SECTIONS]:
        raise UsageError(
            found=f"no section {', '.join(unknown)} in the lock",
            expected=f"some of: {', '.join(SECTIONS)}",
            remedy="correct --only",
        )
    return tuple(s for s in SECTIONS if s in names) if names else SECTIONS


def make_plan(lock: Lock | None, image: ImageConfig, sections: tuple[str, ...]) -> Plan:
    """Give a line per section: stale, missing, or resolved anew because asked for."""
    actions = []
    for name in sections:
        noted = lock.wants.get(name) if lock else None
        if noted is None:
            why = "never resolved"
        elif noted != wanted_by(name, image):
            why = "what is wanted has changed"
        else:
            why = "answers what is wanted; newer versions may exist"
        actions.append(Action(verb="resolve", target=name, why=why))
    actions.append(Action(verb="write", target=shown(lock_file())))
    return Plan(title=f"lock the inputs of image {image.name}", actions=tuple(actions))


def write_lock(ui: Console, *, only: str, image_name: str, only_plan: bool) -> dict[str, Any]:
    """Resolve the chosen sections and replace the lock in one step."""
    sections = chosen_sections(only)
    image, mirrors = load_image(image_name), load_mirrors()
    before = Lock.load() if lock_file().exists() else None
    plan = make_plan(before, image, sections)
    ui.plan(plan)
    if only_plan:
        return plan.as_dict()
    lock = before or Lock(image=image.name)
    lock = lock.model_copy(update={"image": image.name})
    if "apt" in sections and "base" not in sections and not lock.bases:
        raise LockError(
            found="the lock holds no base, so apt cannot know what is there already",
            expected="bases, resolved before apt",
            remedy="run `./inv lock --only base,apt`",
        )
    with AptRoots(mirrors) as roots:
        resolver = Resolver(ui, image, mirrors, roots)
        for name in sections:
            lock = resolver.section(name, lock)
    return _keep(ui, before, lock, insist_on_digest=only != "" and "base" in sections)


def _keep(ui: Console, before: Lock | None, lock: Lock, *, insist_on_digest: bool) -> dict[str, Any]:
    path = lock_file()
    same = before is not None and path.read_text(encoding="utf-8") == render(lock)
    with ui.step("write", shown(path)) as step:
        if same:
            step.status, step.note = "hit", "nothing moved"
        else:
            write(lock, path)
            step.note = f"identity {lock.identity[:12]}"
    vllm = lock.base("vllm")
    if insist_on_digest and not vllm.is_resolved:
        step_text = next((s.note for s in ui.steps if "base vllm" in s.target), "")
        raise Unresolved(
            found=f"base vllm stays unresolved: {step_text.removesuffix('; the lock keeps unresolved')}",
            expected="its digest; everything else that was asked for is written",
            remedy="run `./inv lock --only base` where the registry is reachable, then commit di.lock.yaml",
        )
    return {"lock": shown(path), "identity": lock.identity, "changed": not same, "wants": dict(lock.wants)}
