"""Render the same steps as a Dockerfile with its inputs beside it, for people with BuildKit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from dih20.config import ImageConfig, load_image
from dih20.console import Console
from dih20.errors import UsageError
from dih20.image import standin
from dih20.image.staging import write_inputs
from dih20.image.step_plan import chosen_base, final_labels, plan_steps
from dih20.lock import Base, Lock
from dih20.paths import REPOSITORY, build_dir, shown
from dih20.plan import Action, Plan

TEMPLATE = "Dockerfile.j2"
_MARKER = "Dockerfile"


def render_dockerfile(
    ui: Console, *, base: str, image: str, into: str, plan_only: bool
) -> dict[str, Any]:
    """Write a build context: Dockerfile, and steps/NAME with what each step sees under /mnt."""
    config, lock = chosen_base(load_image(image), base), Lock.load()
    folder = Path(into).resolve() if into else build_dir() / f"dockerfile-{config.name}"
    text = dockerfile(config, lock)
    steps = plan_steps(config, lock)
    actions = [
        Action(
            verb="write",
            target=f"{shown(folder)}/steps/{plan.step.name}",
            why=f"{len(plan.inputs.files)} files",
        )
        for plan in steps
    ]
    actions.append(Action(verb="write", target=f"{shown(folder)}/Dockerfile"))
    plan = Plan(title=f"render {config.name} on {config.base}", actions=tuple(actions))
    ui.plan(plan)
    if plan_only:
        return plan.as_dict()
    _clear(folder)
    for entry in steps:
        write_inputs(entry.inputs.files, folder / "steps" / entry.step.name)
    (folder / "Dockerfile").write_text(text)
    ui.line(f"docker buildx build --tag {config.name}:{steps[-1].key[:12]} {shown(folder)}")
    return {"folder": str(folder), "tag": f"{config.name}:{steps[-1].key[:12]}"}


def dockerfile(config: ImageConfig, lock: Lock) -> str:
    """Give the Dockerfile's text; its order, scripts and variables are those of the step runner."""
    import jinja2

    steps = plan_steps(config, lock)
    base = lock.base(config.base)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(REPOSITORY / "images" / config.name),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        keep_trailing_newline=True,
    )
    return environment.get_template(TEMPLATE).render(
        base=_reference(base),
        tag=f"{config.name}:{steps[-1].key[:12]}",
        steps=[plan.step for plan in steps],
        env=config.environment,
        labels={
            "dih20.owner": "dih20",
            "dih20.base": base.name,
            **final_labels(lock, base, steps[-1].key),
        },
    )


def _reference(base: Base) -> str:
    return f"{standin.TAG}:{standin.key_of(base)}" if base.is_stand_in else base.reference


def _clear(folder: Path) -> None:
    """Empty a folder that an earlier rendering wrote; anything else is not ours to remove."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARKER).is_file() or not (folder / "steps").is_dir():
            raise UsageError(
                found=f"{shown(folder)} holds other files",
                expected="an empty folder, or one that this task wrote before",
                remedy="name another folder with --into",
            )
        shutil.rmtree(folder / "steps")
    folder.mkdir(parents=True, exist_ok=True)
