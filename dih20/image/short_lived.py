"""A container for one run: killed at its deadline, removed on every way out, its engine's faults told as such."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dih20.errors import EngineError
from dih20.lock.engine import client_faults

if TYPE_CHECKING:
    from docker.models.containers import Container


@contextlib.contextmanager
def short_lived(
    make: Callable[[], Container], *, image: str, expected: str, remedy: str
) -> Iterator[Container]:
    """Give the container that `make` creates, and remove it, after an interrupt as well.

    expected, remedy: what an EngineError says when it cannot be created.
    """
    try:
        container = make()
    except client_faults() as problem:
        raise EngineError(
            found=f"no container can be made from {image}: {problem}",
            expected=expected,
            remedy=remedy,
        ) from None
    try:
        yield container
    finally:
        with contextlib.suppress(*client_faults()):
            container.remove(force=True)


@contextlib.contextmanager
def engine_faults(during: str, *, expected: str) -> Iterator[None]:
    """Say in one EngineError that the engine failed, and not what ran in the container."""
    try:
        yield
    except client_faults() as problem:
        raise EngineError(
            found=f"the engine failed {during}: {problem}",
            expected=expected,
            remedy="look at the engine's log and its free disk space, then run the command again",
        ) from None


@contextlib.contextmanager
def deadline(container: Container, limit_s: float) -> Iterator[Callable[[], bool]]:
    """Kill the container at the deadline; the function given says whether that happened."""
    overdue = threading.Event()

    def kill() -> None:
        overdue.set()
        with contextlib.suppress(*client_faults()):
            container.kill()

    timer = threading.Timer(limit_s, kill)
    timer.start()
    try:
        yield overdue.is_set
    finally:
        timer.cancel()
