"""Build the di-h20 image: each step in a container of the one before it, kept as one layer.

A step's key is over its script, what it calls, its locked inputs, its variables and the key of the
step before it. A step whose key an image of this engine carries is a hit; else the line says which
part changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.config import ImageConfig
from dih20.console import Console
from dih20.errors import ImageError
from dih20.image import standin
from dih20.image.abandoned import remove_steps
from dih20.image.build_record import StepTime, record, step_time
from dih20.image.build_session import ended_by_signal, only_build
from dih20.image.dependencies import check_dependencies
from dih20.image.finishing import finished
from dih20.image.run_step import LIMIT_S, ROLE, StepRun, run_step
from dih20.image.staging import Stage, local_folder
from dih20.image.step_plan import (
    StepPlan,
    final_labels,
    plan_step,
    plan_steps,
)
from dih20.image.steps import Step, load_steps, refuse_stubs
from dih20.lock import Base, Lock
from dih20.paths import build_dir
from dih20.plan import Action, Plan

if TYPE_CHECKING:
    import docker

    from dih20.image.host_normal import HostNormal


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """What exists now. The identity is the key of the last step; it names the tag."""

    id: str
    tag: str
    identity: str
    base: str
    steps: tuple[StepPlan, ...]
    step_images: tuple[tuple[str, str], ...] = ()  # each step's name and the raw image it left
    layers: tuple[tuple[str, str], ...] = ()  # each step's name and its layer, "" for none

    def as_dict(self) -> dict[str, Any]:
        steps = [
            {"name": s.step.name, "key": s.key, "hit": s.hit is not None, "why": s.why}
            for s in self.steps
        ]
        return {
            "id": self.id,
            "tag": self.tag,
            "identity": self.identity,
            "base": self.base,
            "steps": steps,
        }


def build_image(
    ui: Console,
    client: docker.DockerClient,
    config: ImageConfig,
    lock: Lock,
    *,
    labels: Mapping[str, str] | None = None,
    steps: Sequence[Step] | None = None,
    stage: Stage = local_folder,
    there: HostNormal | None = None,
    fresh: bool = False,
) -> BuiltImage:
    """Give the image, running only the steps that no image of this engine answers.

    Args:
        labels: labels beside the ones that this package knows, such as the patchset's identity.
        steps: other steps than those of images/di-h20.
        stage: lays out a step's inputs where the engine can mount them.
        there: for a host's engine: gives the image its normal form on the host.
        fresh: run every step, whatever the engine holds, and give the result no name.
    """
    base = lock.base(config.base)
    base.require_digest()
    chosen = load_steps() if steps is None else tuple(steps)
    with only_build(client) as holder, ended_by_signal():
        remove_steps(client, holder, LIMIT_S)
        current = below = base_image(ui, client, lock, base)
        _check_base(client, current, base)
        _check_debs(ui, client, current, base, plan_steps(config, lock, client, chosen))
        done: list[StepPlan] = []
        images: list[tuple[str, str]] = []
        times: list[StepTime] = []
        for number, step in enumerate(chosen, 1):
            plan = plan_step(
                client, step, lock, base, parent=current, before=done[-1] if done else None
            )
            if fresh:
                plan = replace(plan, hit=None, why="made anew")
            log = build_dir() / "logs" / f"image-{base.name}-{step.name}.log"
            with ui.step("layer", step.name) as line:
                line.status, line.note = ("hit" if plan.hit else "miss"), plan.why
                current = plan.hit or _run(
                    ui,
                    client,
                    plan,
                    base,
                    parent=current,
                    number=number,
                    count=len(chosen),
                    log=log,
                    holder=holder,
                    stage=stage,
                )
            done.append(plan)
            images.append((step.name, current))
            times.append(step_time(plan, line.seconds))
        identity = done[-1].key
        wanted = {**final_labels(lock, base, identity), **(labels or {})}
        found = finished(ui, client, config, below, images, wanted, there)
        tag = f"{config.name}:{identity[:12]}"
        if not fresh:
            with ui.step("tag", tag) as line:
                # Also when it has the name: the engine notes the time, and "the newest" means this one.
                client.images.get(found.id).tag(config.name, identity[:12])
                line.note = found.id[7:19]
            normal = [step.seconds for step in ui.steps if step.verb == "normalise"]
            record(identity, times, normal[-1] if normal else 0.0)
        return BuiltImage(
            id=found.id,
            tag=tag,
            identity=identity,
            base=base.name,
            steps=tuple(done),
            step_images=tuple(images),
            layers=found.steps,
        )


def make_plan(
    client: docker.DockerClient | None,
    config: ImageConfig,
    lock: Lock,
    steps: Sequence[Step] | None = None,
) -> Plan:
    """Give an action per layer; without an engine it is not known which of them are there."""
    base = lock.base(config.base)
    plans = plan_steps(config, lock, client, steps)
    actions = [
        Action(verb="use", target=f"base {base.name}", why=base.image or base.suite, needed=False)
    ]
    for plan in plans:
        needed = None if client is None else plan.hit is None
        actions.append(
            Action(verb="run", target=f"step {plan.step.name}", why=plan.why, needed=needed)
        )
    tag = f"{config.name}:{plans[-1].key[:12]}"
    needed = actions[-1].needed
    actions.append(Action(verb="normalise", target=f"{len(plans)} layers of ours", needed=needed))
    actions.append(Action(verb="tag", target=tag, needed=needed))
    return Plan(title=f"build {config.name} on {base.name}", actions=tuple(actions))


def base_image(ui: Console, client: docker.DockerClient, lock: Lock, base: Base) -> str:
    """Give the id of the base in this engine; the stand-in is loaded, a registry base must be there."""
    from docker.errors import ImageNotFound

    if base.is_stand_in:
        return str(client.images.get(standin.load(ui, client, lock)).id)
    try:
        return str(client.images.get(base.reference).id)
    except ImageNotFound:
        raise ImageError(
            found=f"the engine holds no {base.reference}",
            expected=f"the base {base.image} at its locked digest; builds do not download",
            remedy=f"docker pull {base.reference}",
        ) from None


def _check_base(client: docker.DockerClient, image: str, base: Base) -> None:
    config = client.images.get(image).attrs.get("Config") or {}
    refuse_stubs(config.get("Env") or [], f"the base {base.image or base.name}")


def _check_debs(
    ui: Console,
    client: docker.DockerClient,
    image: str,
    base: Base,
    plans: Sequence[StepPlan],
) -> None:
    """Judge the packages that are about to be installed as a whole, before the first step runs."""
    if any(plan.inputs.debs for plan in plans if not plan.hit):
        debs = [deb for plan in plans for deb in plan.inputs.deb_files()]
        check_dependencies(ui, client, image, base, debs)


def _run(
    ui: Console,
    client: docker.DockerClient,
    plan: StepPlan,
    base: Base,
    *,
    parent: str,
    number: int,
    count: int,
    log: Path,
    holder: str,
    stage: Stage,
) -> str:
    labels = {
        "dih20.owner": "dih20",
        "dih20.role": ROLE,
        "dih20.base": base.name,
        "dih20.step": plan.step.name,
        "dih20.step-key": plan.key,
        "dih20.step-parts": json.dumps(plan.inputs.parts, sort_keys=True),
    }
    with stage(plan.inputs.files) as folder:
        run = StepRun(
            number=number,
            count=count,
            name=plan.step.name,
            parent=parent,
            folder=folder,
            env=plan.step.env,
            log=log,
            holder=holder,
            debs=plan.inputs.debs,
        )
        return run_step(ui, client, run, labels)
