"""A real server in its own process: `python -m dih20.serve`, as the container runs it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dih20.operate.processes import has_ended
from dih20.paths import REPOSITORY
from tests.serve.paced_engine import NAME as PACED

WAIT_S = 90.0  # generous: the machine may be loaded; every wait ends early


class Server:
    """Start with `with`; leaving it ends the server and proves that nothing of it is left.

    folder: for settings, log, port file and state. settings: fields of Settings; engine_options
    go to the paced engine unless another engine is named. below: words of a command that runs it.
    """

    def __init__(
        self, folder: Path, *, ready: bool = True, below: Sequence[str] = (), **settings: Any
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._below = below
        self.folder, self.log, self._wait = folder, folder / "log", ready
        self._port_file = folder / "port.json"
        self.settings = {
            "engine": PACED,
            "port": 0,
            "port_file": str(self._port_file),
            "state_dir": str(folder / "state"),
        } | settings
        self.port = 0
        self.process: subprocess.Popen[bytes]
        self._seen: set[int] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        file = self.folder / "settings.json"
        file.write_text(json.dumps(self.settings))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._below, sys.executable, "-m", "dih20.serve", "--settings", str(file)],
                cwd=REPOSITORY,
                env=os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self.wait_until(self._port_file.exists, "the port file")
            self.port = json.loads(self._port_file.read_text())["port"]
            if self._wait:
                self.wait_ready()
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.note_processes()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        if kind is None:
            self.prove_nothing_is_left()

    def wait_ready(self) -> None:
        self.wait_until(lambda: self.get("/readyz")[0] == 200, "readyz to say 200")

    def wait_until(self, is_so: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait for something that this server will bring about; its end stops the wait."""
        deadline = time.monotonic() + timeout_s
        while not is_so():
            code = self.process.poll()
            assert code is None, f"ended with {code} before {what}:\n{self.log_tail()}"
            assert time.monotonic() < deadline, (
                f"not in {timeout_s:g} s: {what}:\n{self.log_tail()}"
            )
            time.sleep(0.02)

    def wait_exit(self, timeout_s: float = WAIT_S) -> int:
        return self.process.wait(timeout_s)

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Give status and body; 0 when nobody answers."""
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as answer:
            return answer.code, answer.read().decode()
        except (urllib.error.URLError, ConnectionError):
            return 0, ""

    def json(self, path: str) -> Any:
        return json.loads(self.get(path)[1])

    def metric(self, name: str) -> float:
        """Give one sample of /metrics by its whole name, labels included."""
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[-1])
        raise AssertionError(f"{name} is not in /metrics")

    def connect(self, timeout_s: float = 30.0, receive_bytes: int = 0) -> socket.socket:
        """Give a raw connection. receive_bytes: the size of its receive buffer, 0 for the usual."""
        raw = socket.socket()
        if receive_bytes:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        raw.settimeout(timeout_s)
        raw.connect(("127.0.0.1", self.port))
        return raw

    def processes(self) -> set[int]:
        """Give the server's process and all below it."""
        return {self.process.pid} | descendants(self.process.pid)

    def note_processes(self) -> None:
        """Remember who runs now; prove_nothing_is_left asks after them when the server is gone."""
        self._seen |= self.processes()

    def prove_nothing_is_left(self, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while left := {pid for pid in self._seen if is_alive(pid)}:
            assert time.monotonic() < deadline, f"left: {[_command(pid) for pid in left]}"
            time.sleep(0.02)

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""


def descendants(pid: int) -> set[int]:
    """Give every process below this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            parents[int(entry.name)] = int(stat[1])
    found, queue = set(), [pid]
    while queue:
        above = queue.pop()
        below = {child for child, parent in parents.items() if parent == above}
        found |= below
        queue += below
    return found


def _stat(pid: int) -> list[str]:
    """Give /proc/PID/stat from the state on; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def resident_bytes(pid: int) -> int:
    """Give the memory of one process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    """Give the number of a process's file descriptors."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def is_alive(pid: int) -> bool:
    """Say whether it runs; a zombie does not, once all its threads have ended."""
    stat = _stat(pid)
    return bool(stat) and not has_ended(stat)


def _command(pid: int) -> str:
    try:
        return f"{pid}: " + Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return f"{pid}: gone"
