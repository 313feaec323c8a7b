"""A server that was put somewhere: what the tasks ask of it, wherever it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from dih20.operate.endpoint import Endpoint


@dataclass(frozen=True, kw_only=True)
class Life:
    """Whether the server's own process lives; the exit code once it has ended."""

    is_running: bool
    exit_code: int | None = None


class Placed(Protocol):
    """One server: a process of this machine, or a container of a host."""

    @property
    def name(self) -> str:
        """Give what messages call it."""
        ...

    @property
    def where(self) -> str:
        """Give what messages call its machine."""
        ...

    @property
    def endpoint(self) -> Endpoint:
        """Give where it listens."""
        ...

    @property
    def silence(self) -> str:
        """Say what it means that the process lives and nothing answers."""
        ...

    def others(self) -> list[str]:
        """Say what else stands ready beside it."""
        ...

    def life(self) -> Life: ...

    def tail(self, lines: int) -> list[str]:
        """Give its last log lines."""
        ...

    def lines(self, *, follow: bool) -> Iterator[str]:
        """Give its log, line by line; with follow, until it ends."""
        ...
