"""The CI image: the steps of images/ci on the stand-in or on the user's own base, built as every image is."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.errors import FetchError, HashMismatch, LockError

if TYPE_CHECKING:
    import docker

    from dih20.config import ImageConfig
    from dih20.image.build import BuiltImage
    from dih20.image.steps import Step
    from dih20.lock import Lock


def ci_image(ui: Console, *, plan_only: bool = False) -> dict[str, Any]:
    """Build the CI image, or plan it; plain values, as the task gives them."""
    from dih20.image import build, engine

    config, lock, steps = inputs()
    with closing(engine.connect()) as client:
        if plan_only:
            plan = build.make_plan(client, config, lock, steps)
            ui.plan(plan)
            return plan.as_dict()
        return build_with(ui, client).as_dict()


def build_with(ui: Console, client: docker.DockerClient) -> BuiltImage:
    """Give the CI image in an engine, running only the steps that it lacks."""
    from dih20.image import build

    config, lock, steps = inputs()
    try:
        return build.build_image(ui, client, config, lock, steps=steps)
    except HashMismatch:
        raise
    except FetchError as lacking:
        raise FetchError(
            found=lacking.found,
            expected=lacking.expected,
            remedy="run `./inv fetch --only ci`, then the command again",
        ) from lacking


def inputs() -> tuple[ImageConfig, Lock, tuple[Step, ...]]:
    """Give what the image is made from: its name and variables, its own part of the lock, its steps."""
    from dih20.config import load_ci, load_image
    from dih20.image.steps import load_steps
    from dih20.lock import Lock
    from dih20.paths import REPOSITORY

    wanted, lock = load_ci(), Lock.load()
    own = ci_lock(lock, wanted.name)
    (base,) = own.bases
    settings = {"name": wanted.name, "base": base, "environment": wanted.environment}
    config = load_image(lock.image).model_copy(update=settings)
    return config, own, load_steps(REPOSITORY / "images" / "ci")


def ci_lock(lock: Lock, name: str) -> Lock:
    """Give the CI image's part as a lock of its own, so that no other pin moves the image."""
    from dih20.lock import Lock

    ci = lock.ci_image()
    base = ci.base or lock.base("stand-in")
    if base.digest != ci.base_digest:
        raise LockError(
            found=f"the CI image's packages were locked on base {ci.base_digest[:19]}, which now is {base.digest[:19]}",
            expected="packages that belong to the base",
            remedy="run `./inv lock --only ci`",
        )
    return Lock(
        image=name,
        bases={base.name: base},
        apt={base.name: ci.debs},
        python={base.python_tag: ci.wheels},
    )
