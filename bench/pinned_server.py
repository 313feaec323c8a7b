"""A server on a core of its own, and what its processes cost there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Self

from tests.serve.running import Server, descendants

SERVER_CORE, LOAD_CORE = 0, 1


class PinnedServer(Server):
    """The gateway and its engine share the first core; the program that starts it has the second."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="dih20-load-")), **settings)

    def __enter__(self) -> Self:
        os.sched_setaffinity(0, {SERVER_CORE})
        try:
            return super().__enter__()
        finally:
            os.sched_setaffinity(0, {LOAD_CORE})

    def cpu_s(self) -> dict[str, float]:
        """Give the processor seconds of each process so far, all threads of it."""
        return {self._role(pid): _cpu_s(pid) for pid in self.processes()}

    def _role(self, pid: int) -> str:
        if pid == self.process.pid:
            return "gateway"
        return "guard" if descendants(pid) else "engine"


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
