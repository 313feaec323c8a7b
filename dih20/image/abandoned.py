"""Remove the containers that a killed build or job left in an engine, and none that is still at work.

A step's container says by its name which cache's guard its build holds (build_session.only_build), so
that builds of two machines on one engine leave each other's alone. A label would be handed down to the
image and to all made from it. A job's container is never kept as an image: its label says its limit.
Whatever is older than it may become was left by somebody who will not come back.
"""

from __future__ import annotations

import contextlib
import datetime
import secrets
from typing import TYPE_CHECKING, Any

from dih20.lock.engine import client_faults

if TYPE_CHECKING:
    import docker

_STEP = "dih20-image-step-"
_LIMIT = "dih20.limit-s"
_SLACK_S = 3600.0  # for what comes before and after the time that is limited, such as a commit


def step_name(holder: str) -> str:
    """Give a name for the container of a step in the build of this holder."""
    return f"{_STEP}{holder}-{secrets.token_hex(6)}"


def job_labels(role: str, limit_s: float) -> dict[str, str]:
    """Give the labels of a job's container."""
    return {"dih20.owner": "dih20", "dih20.role": role, _LIMIT: f"{limit_s:.0f}"}


def remove_steps(client: docker.DockerClient, holder: str, limit_s: float) -> int:
    """Remove step containers of this holder's earlier builds and overdue ones; give how many there were.

    Call it while the guard is held and before the first step.
    """
    ours, others = [], []
    for container in client.containers.list(all=True, sparse=True):
        name = container.attrs["Names"][0].lstrip("/")
        if name.startswith(f"{_STEP}{holder}-"):
            ours.append(container)
        elif name.startswith(_STEP):
            others.append(container)
    if others:
        now = _engine_time(client)
        others = [container for container in others if _is_overdue(container, limit_s, now)]
    return sum(_remove(container) for container in ours + others)


def remove_jobs(client: docker.DockerClient, role: str) -> int:
    """Remove overdue containers of jobs of this role; give how many there were."""
    labels = ["dih20.owner=dih20", f"dih20.role={role}", _LIMIT]
    found = client.containers.list(all=True, sparse=True, filters={"label": labels})
    if not found:
        return 0
    now = _engine_time(client)
    overdue = [c for c in found if _is_overdue(c, float(c.attrs["Labels"][_LIMIT]), now)]
    return sum(_remove(container) for container in overdue)


def _is_overdue(container: Any, limit_s: float, now: float) -> bool:
    return bool(now - container.attrs["Created"] > limit_s + _SLACK_S)


def _engine_time(client: docker.DockerClient) -> float:
    """Give the engine's own time: another machine's clock may differ from ours."""
    return datetime.datetime.fromisoformat(client.info()["SystemTime"]).timestamp()


def _remove(container: Any) -> int:
    # Its owner, or another build that cleans up, may be about to remove it as well.
    with contextlib.suppress(*client_faults()):
        container.remove(force=True)
        return 1
    return 0
