"""What the client of a host's engine raises, as an error that says which of the two failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dih20.errors import DeployError

if TYPE_CHECKING:
    from dih20.hosts.ssh import SshRunner


@contextmanager
def engine_faults(runner: SshRunner) -> Iterator[None]:
    """Turn what the engine's client raises into an error that says whether host or connection failed."""
    from docker.errors import APIError, DockerException
    from requests import RequestException

    try:
        yield
    except (DockerException, RequestException) as fault:
        runner.require_connected()
        said = fault.explanation if isinstance(fault, APIError) else None
        raise DeployError(
            found=f"the Docker engine on {runner.name} failed: {said or fault}",
            expected="an engine that carries out what it is asked",
            remedy="look at the engine's log and free disk space on the host, then repeat",
        ) from fault
