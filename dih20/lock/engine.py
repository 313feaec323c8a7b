"""The Docker engine as far as the lock and fetch need it: to ask its registry, to hold a base."""

from __future__ import annotations

from typing import Any


class NotReachable(Exception):
    """One way to a registry or engine is closed; its text says why. Always turned into a ToolError."""


def client_faults() -> tuple[type[Exception], ...]:
    """Give what a client raises when the engine, or the way to it, fails: its own errors, time-outs, cut streams.

    The SDK wraps the engine's answers alone; what its HTTP layers raise comes through as it is.
    """
    import requests
    import urllib3
    from docker.errors import DockerException

    return DockerException, requests.RequestException, urllib3.exceptions.HTTPError


def engine_client(timeout_s: float = 60) -> Any:
    """Give a client of the engine that DOCKER_HOST or Docker's own rules name, or NotReachable."""
    import docker

    try:
        client = docker.from_env(timeout=int(timeout_s))
        client.version()
    except client_faults() as fault:
        raise NotReachable(f"no Docker engine to ask through: {_innermost(fault)}") from fault
    return client


def _innermost(fault: BaseException) -> str:
    while fault.__cause__ or fault.__context__:
        fault = fault.__cause__ or fault.__context__ or fault
    return str(fault)
