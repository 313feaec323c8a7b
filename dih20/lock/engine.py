"""The Docker engine as far as the lock and fetch need it: to ask its registry, to hold a base."""

from __future__ import annotations

from typing import Any


class NotReachable(Exception):
    """One way to a registry or engine is closed; its text says why. Always turned into a ToolError."""


def engine_client(timeout_s: float = 60) -> Any:
    """Give a client of the engine that DOCKER_HOST or Docker's own rules name, or NotReachable."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=int(timeout_s))
        client.version()
    except DockerException as fault:
        raise NotReachable(f"no Docker engine to ask through: {_innermost(fault)}") from fault
    return client


def _innermost(fault: BaseException) -> str:
    while fault.__cause__ or fault.__context__:
        fault = fault.__cause__ or fault.__context__ or fault
    return str(fault)
