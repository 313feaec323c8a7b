"""Say of each step what its key is, whether this engine has its layer, and if not, which part changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dih20.config import ImageConfig
from dih20.errors import UsageError
from dih20.image import standin
from dih20.image.inputs import StepInputs, inputs_of
from dih20.image.run_step import ROLE
from dih20.image.steps import Step, load_steps
from dih20.lock import Base, Lock

if TYPE_CHECKING:
    import docker

FORMAT = "1"  # raise it when the way steps are run changes, so that no older layer is taken


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """A step with its key, and the image that has it already, or why none has."""

    step: Step
    inputs: StepInputs
    key: str
    hit: str | None
    why: str


def chosen_base(config: ImageConfig, name: str) -> ImageConfig:
    """Give the configuration on another base than the one it names; "" leaves it."""
    if name not in ("", "vllm", "stand-in"):
        raise UsageError(
            found=f"--base {name}", expected="vllm or stand-in", remedy="name one of the two"
        )
    return config.model_copy(update={"base": name}) if name else config


def plan_steps(
    config: ImageConfig,
    lock: Lock,
    client: docker.DockerClient | None = None,
    steps: Sequence[Step] | None = None,
) -> tuple[StepPlan, ...]:
    """Give every step with its key, and with a client also what this engine has of them."""
    base = lock.base(config.base)
    base.require_digest()
    plans: list[StepPlan] = []
    for step in load_steps() if steps is None else steps:
        before = plans[-1] if plans else None
        plans.append(plan_step(client, step, lock, base, parent=None, before=before))
    return tuple(plans)


def final_labels(lock: Lock, base: Base, identity: str) -> dict[str, str]:
    """Give the labels that say what the finished image is."""
    return {
        "dih20.role": "image",
        "dih20.identity": identity,
        "dih20.lock": lock.identity,
        "dih20.python-tag": base.python_tag,
        "dih20.torch": base.torch,
        "dih20.patchset": "none",
    }


def plan_step(
    client: docker.DockerClient | None,
    step: Step,
    lock: Lock,
    base: Base,
    *,
    parent: str | None,
    before: StepPlan | None,
) -> StepPlan:
    """Give a step's key and the image that answers it; parent=None leaves the layers unchecked."""
    inputs = inputs_of(step, lock, base)
    below = (
        before.key
        if before
        else standin.key_of(base)
        if base.is_stand_in
        else base.require_digest()
    )
    parts = {"format": FORMAT, **inputs.parts, "step below": below}
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    shown_inputs = StepInputs(files=inputs.files, parts=parts)
    if client is None:
        return StepPlan(step=step, inputs=shown_inputs, key=key, hit=None, why="")
    found = _answering(client, key, parent)
    why = "script and inputs unchanged" if found else _why_missed(client, step, base, parts)
    return StepPlan(step=step, inputs=shown_inputs, key=key, hit=found, why=why)


def _answering(client: docker.DockerClient, key: str, parent: str | None) -> str | None:
    """Give the step image with this key whose layers lie on the parent's."""
    filters = {"label": [f"dih20.role={ROLE}", f"dih20.step-key={key}"]}
    for entry in client.api.images(all=True, filters=filters):
        if parent is None:
            return str(entry["Id"])
        below, own = layers_of(client, parent), layers_of(client, entry["Id"])
        if own[: len(below)] == below and len(own) - len(below) <= 1:
            return str(entry["Id"])
    return None


def _why_missed(
    client: docker.DockerClient, step: Step, base: Base, parts: Mapping[str, str]
) -> str:
    """Name the parts that differ from the newest image that this step made on this base."""
    filters = {
        "label": [f"dih20.role={ROLE}", f"dih20.base={base.name}", f"dih20.step={step.name}"]
    }
    entries = client.api.images(all=True, filters=filters)
    if not entries:
        return "never built in this engine"
    newest = max(entries, key=lambda entry: int(entry["Created"]))
    was = json.loads((newest.get("Labels") or {}).get("dih20.step-parts", "{}"))
    changed = sorted(name for name in was.keys() | parts.keys() if was.get(name) != parts.get(name))
    return f"changed: {', '.join(changed)}" if changed else "the layer below is another one"


def layers_in(image: dict[str, Any]) -> list[str]:
    return list(image["RootFS"].get("Layers") or [])


def layers_of(client: docker.DockerClient, image: str) -> list[str]:
    return layers_in(client.images.get(image).attrs)
