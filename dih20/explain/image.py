"""What an image says of itself by its labels, and what a build here would make instead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.errors import ToolError, UsageError
from dih20.explain.here import CacheAnswer

if TYPE_CHECKING:
    from dih20.image.step_plan import StepPlan
    from dih20.lock import Lock

_SHOWN = ("role", "base", "lock", "patchset", "python-tag", "torch", "identity", "step", "wheels")
_SHORT = 12


def explain_image(
    ui: Console, attrs: Mapping[str, Any], name: str, *, with_sbom: bool
) -> dict[str, Any]:
    """Print where an image came from.

    Args:
        attrs: what the engine says of the image.
    """
    labels = labels_of(attrs)
    if labels.get("dih20.owner") != "dih20":
        raise UsageError(
            found=f"image {name} carries no label dih20.owner=dih20",
            expected="an image that this tool made; its labels say where it came from",
            remedy="name another one; `docker image ls --filter label=dih20.owner=dih20` lists them",
        )
    answer = compare_with_here(labels)
    ui.line(f"image {name}   {str(attrs['Id'])[:19]}, {len(attrs['RootFS']['Layers'])} layers")
    show_labels(ui, labels, answer)
    result = {
        "kind": "image",
        "name": name,
        "id": attrs["Id"],
        "labels": ours(labels),
        "cache": answer.as_dict(),
    }
    return {**result, "sbom": sbom_of(labels)} if with_sbom else result


def labels_of(attrs: Mapping[str, Any]) -> dict[str, str]:
    return dict((attrs.get("Config") or {}).get("Labels") or {})


def ours(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(labels.items()) if name.startswith("dih20.")}


def show_labels(ui: Console, labels: Mapping[str, str], answer: CacheAnswer) -> None:
    """Print the labels that say what the image is made of, then whether a build here would be the same."""
    for name in _SHOWN:
        if value := labels.get(f"dih20.{name}"):
            ui.line(f"  {name:<12} {value}")
    for part, value in sorted(_last_step(labels).items()):
        ui.line(f"  {'last step':<12} {part}: {value[:_SHORT] if len(value) == 64 else value}")
    for line in answer.lines:
        ui.line(f"  {'cache':<12} {line}")


def compare_with_here(labels: Mapping[str, str]) -> CacheAnswer:
    """Say what of the image's key differs from what lock and tree here give for the same base."""
    from dih20.lock import Lock

    try:
        lock = Lock.load()
        plans = plans_for(labels, lock)
    except ToolError as missing:
        return CacheAnswer(is_hit=None, why_unknown=missing.found)
    if labels.get("dih20.identity") == plans[-1].key:
        return CacheAnswer(is_hit=True)
    by_name = {plan.step.name: plan for plan in plans}
    step = by_name.get(labels.get("dih20.step", ""))
    if step is None:
        known = ", ".join(by_name)
        return CacheAnswer(
            is_hit=None,
            why_unknown=f"its last step is {labels.get('dih20.step', 'not named')}; here: {known}",
        )
    parts, was = step.inputs.parts, _last_step(labels)
    changed = [
        f"{part} of step {step.step.name}"
        for part in sorted(parts.keys() | was.keys())
        if parts.get(part) != was.get(part) and part != "step below"
    ]
    if parts.get("step below") != was.get("step below"):
        changed.append(f"a step below {step.step.name}, or the base")
    if labels.get("dih20.lock") != lock.identity:
        mine, here = labels.get("dih20.lock", "none")[:_SHORT], lock.identity[:_SHORT]
        changed.append(f"the lock: {mine} there, {here} here")
    return CacheAnswer(is_hit=False, changed=tuple(changed))


def plans_for(labels: Mapping[str, str], lock: Lock) -> tuple[StepPlan, ...]:
    """Give the steps that would make such an image here: of the variant whose last step it ends with, else the plain one."""
    from dih20.config import load_image
    from dih20.image.step_plan import chosen_base, plan_steps
    from dih20.image.steps import load_steps, load_variant_steps

    config = load_image("di-h20")
    steps = load_steps()
    for name in config.variants:
        own = load_variant_steps(name)
        if own[-1].name == labels.get("dih20.step"):
            config, steps = config.variant(name), own
    return plan_steps(chosen_base(config, labels.get("dih20.base", "")), lock, None, steps)


def _last_step(labels: Mapping[str, str]) -> dict[str, str]:
    parts: dict[str, str] = json.loads(labels.get("dih20.step-parts", "{}"))
    return parts


def sbom_of(labels: Mapping[str, str]) -> dict[str, Any]:
    """Give the bill of materials of the image, out of the lock that it was built from."""
    from dih20.lock import Lock
    from dih20.provenance.sbom import as_json, image_bom

    lock = Lock.load()
    if labels.get("dih20.lock") != lock.identity:
        raise UsageError(
            found=f"the image was built from lock {labels.get('dih20.lock', 'none')[:_SHORT]}, "
            f"the lock here is {lock.identity[:_SHORT]}",
            expected="the lock that lists what is in the image",
            remedy="name that lock with DI_LOCK, or check out the commit that has it",
        )
    files = [file.locked for plan in plans_for(labels, lock) for file in plan.inputs.files]
    bom = image_bom(lock.base(labels["dih20.base"]), labels["dih20.identity"], filter(None, files))
    content: dict[str, Any] = json.loads(as_json(bom))
    return content
