"""What `inv build-image` does: find the configuration, the lock and the engine, then build."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.errors import EngineError, UsageError

if TYPE_CHECKING:
    from dih20.config import ImageConfig
    from dih20.lock import Lock


def build_image(
    ui: Console, *, base: str = "", image: str = "di-h20", host: str = "", plan_only: bool = False
) -> dict[str, Any]:
    """Build the image on the configured or the named base, and give it as plain values."""
    from dih20.config import load_image
    from dih20.image import build, engine, step_plan
    from dih20.lock import Lock

    if host:
        raise UsageError(
            found=f"build-image --host {host}: an image cannot be built on a host yet",
            expected="a build in the engine of this machine; its steps mount the cache of this machine",
            remedy=f"./inv build-image, then ./inv deploy --host {host}, which sends the layers that the host lacks",
        )
    config = step_plan.chosen_base(load_image(image), base)
    lock = Lock.load()
    lock.base(config.base).require_digest()
    if plan_only:
        return _plan(ui, config, lock)
    client = engine.connect()
    try:
        return build.build_image(ui, client, config, lock, labels=_patchset(lock)).as_dict()
    finally:
        client.close()


def _plan(ui: Console, config: ImageConfig, lock: Lock) -> dict[str, Any]:
    from dih20.image import build, engine

    try:
        client = engine.connect()
    except EngineError:
        ui.plan(build.make_plan(None, config, lock))
        raise
    try:
        plan = build.make_plan(client, config, lock)
    finally:
        client.close()
    ui.plan(plan)
    return plan.as_dict()


def _patchset(lock: Lock) -> dict[str, str]:
    """Give the patchset's identity as a label: which patched tree the wheels for this image come from."""
    from dih20.patches import patchset_identity

    return {"dih20.patchset": patchset_identity(lock)}


def build_from_dockerfile(ui: Console, path: Path, *, tag: str, plan_only: bool) -> dict[str, Any]:
    """Build a user's own Dockerfile with the classic builder, or refuse it naming line and feature."""
    from dih20.image import engine, user_dockerfile

    plan = user_dockerfile.make_plan(path, tag)
    ui.plan(plan)
    if plan_only:
        return plan.as_dict()
    client = engine.connect()
    try:
        return user_dockerfile.build(ui, client, path, tag=tag)
    finally:
        client.close()
