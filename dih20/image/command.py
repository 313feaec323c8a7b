"""What `inv build-image` does: find the configuration, the lock and the engine, then build."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.errors import EngineError, HostError

if TYPE_CHECKING:
    import docker

    from dih20.config import ImageConfig
    from dih20.image.host_normal import HostNormal
    from dih20.image.staging import Stage
    from dih20.image.steps import Step
    from dih20.lock import Lock


def build_image(
    ui: Console,
    *,
    patchset: Callable[[Lock], str],
    base: str = "",
    image: str = "di-h20",
    variant: str = "",
    host: str = "",
    plan_only: bool = False,
) -> dict[str, Any]:
    """Build the image on the configured or the named base, or a variant; give it as plain values.

    Args:
        patchset: gives the identity of the patched tree that wheels for this image come from, for a label;
            dih20.patches stands to the right of this package, so who calls hands it in.
    """
    from dih20.config import load_image
    from dih20.image import build, step_plan
    from dih20.image.steps import load_steps, load_variant_steps
    from dih20.lock import Lock

    config = step_plan.chosen_base(load_image(image), base)
    config = config.variant(variant) if variant else config
    steps = load_variant_steps(variant) if variant else load_steps()
    lock = Lock.load()
    lock.base(config.base).require_digest()
    try:
        return _with_engine(ui, config, lock, steps, patchset, host=host, plan_only=plan_only)
    except (EngineError, HostError):
        if plan_only:
            ui.plan(build.make_plan(None, config, lock, steps))
        raise


def _with_engine(
    ui: Console,
    config: ImageConfig,
    lock: Lock,
    steps: tuple[Step, ...],
    patchset: Callable[[Lock], str],
    *,
    host: str,
    plan_only: bool,
) -> dict[str, Any]:
    from dih20.image import build

    with _engine(ui, host) as (client, stage, there):
        if plan_only:
            plan = build.make_plan(client, config, lock, steps)
            ui.plan(plan)
            return plan.as_dict()
        built = build.build_image(
            ui,
            client,
            config,
            lock,
            labels={"dih20.patchset": patchset(lock)},
            steps=steps,
            stage=stage,
            there=there,
        )
        return built.as_dict()


@contextmanager
def _engine(
    ui: Console, host: str
) -> Iterator[tuple[docker.DockerClient, Stage, HostNormal | None]]:
    """Give the engine of this machine or of a host, how inputs get to it, and what is done on the host."""
    from dih20.image import engine, staging

    if not host:
        with closing(engine.connect()) as client:
            yield client, staging.local_folder, None
        return
    from dih20.config import load_host
    from dih20.hosts import ssh
    from dih20.image.host_normal import HostNormal
    from dih20.image.host_staging import HostStaging

    with ssh.connect(load_host(host)) as runner:
        yield runner.docker(), HostStaging(ui, runner).folder, HostNormal(ui, runner)


def build_from_dockerfile(ui: Console, path: Path, *, tag: str, plan_only: bool) -> dict[str, Any]:
    """Build a user's own Dockerfile with the classic builder, or refuse it naming line and feature."""
    from dih20.image import engine, user_dockerfile

    plan = user_dockerfile.make_plan(path, tag)
    ui.plan(plan)
    if plan_only:
        return plan.as_dict()
    with closing(engine.connect()) as client:
        return user_dockerfile.build(ui, client, path, tag=tag)
