"""A server on this machine: the canary by the reference model on CPU, found again by a state file."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dih20.errors import NotServing
from dih20.operate.endpoint import Endpoint
from dih20.operate.placed import Life
from dih20.operate.processes import Process, find, lives
from dih20.paths import build_dir, shown

_POLL_S = 0.2
_EXIT_WAIT_S = 5.0


def state_folder() -> Path:
    return build_dir() / "serve"


@dataclass(frozen=True, kw_only=True)
class LocalServer:
    """A server process of this machine."""

    process: Process
    instance: str
    port: int
    log: Path
    model: str
    drain_s: float
    name: str = "the server"
    where: str = "this machine"
    silence: str = "lives, and does not answer"

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(host="127.0.0.1", port=self.port)

    def others(self) -> list[str]:
        return []

    def life(self) -> Life:
        if lives(self.process):
            return Life(is_running=True)
        return Life(is_running=False, exit_code=exit_code(self.process.pid))

    def tail(self, lines: int) -> list[str]:
        try:
            return self.log.read_text(errors="backslashreplace").splitlines()[-lines:]
        except FileNotFoundError:
            return []

    def lines(self, *, follow: bool) -> Iterator[str]:
        """Give the log's lines; with follow, until the server has ended."""
        with self.log.open(errors="backslashreplace") as file:
            while True:
                lived = lives(self.process)
                for line in file:
                    yield line.rstrip("\n")
                if not follow or not lived:
                    return
                time.sleep(_POLL_S)


children: dict[int, subprocess.Popen[bytes]] = {}


def exit_code(pid: int) -> int | None:
    """Give the exit code of a child of this program that ends; of another's child it is not known."""
    child = children.get(pid)
    try:
        return None if child is None else child.wait(_EXIT_WAIT_S)
    except subprocess.TimeoutExpired:
        return None


def write_state(server: LocalServer) -> None:
    values = {**asdict(server), "log": str(server.log)}
    draft = state_folder() / "server.part"
    draft.write_text(json.dumps(values, indent=1))
    draft.replace(state_folder() / "server.json")


def recorded() -> LocalServer | None:
    """Give the server that was started here, when its process lives still."""
    try:
        values = json.loads((state_folder() / "server.json").read_text())
        before, values["log"] = Process(**values["process"]), Path(values["log"])
    except FileNotFoundError:
        return None
    now = find(before.pid)
    if now is None or now.born != before.born:
        return None
    return LocalServer(**{**values, "process": now})


def require_recorded() -> LocalServer:
    """Give the running server, or raise NotServing."""
    if server := recorded():
        return server
    raise NotServing(
        found=f"no server runs here, as far as {shown(state_folder() / 'server.json')} says",
        expected="one that `./inv serve` started",
        remedy="run `./inv serve --detach`, or name a host with --host",
    )


def forget(server: LocalServer) -> None:
    """Drop what says that a server runs; one that this program started leaves no zombie."""
    drop_record(server.instance)
    if child := children.pop(server.process.pid, None):
        child.wait()


def drop_record(instance: str) -> None:
    """Remove the state file, unless another server has been recorded since."""
    file = state_folder() / "server.json"
    with contextlib.suppress(FileNotFoundError):
        if json.loads(file.read_text())["instance"] == instance:
            file.unlink()
