"""A server on this machine: the canary by the reference model on CPU, found again by a state file."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dih20.errors import NotServing, UnfitToServe, UsageError
from dih20.operate.endpoint import Endpoint
from dih20.operate.placed import Life
from dih20.operate.processes import MARK, Process, find, lives
from dih20.operate.serving import load_serving, local_settings
from dih20.paths import REPOSITORY, build_dir, shown
from dih20.serve.settings import Settings

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
        return Life(is_running=False, exit_code=_exit_code(self.process.pid))

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


_children: dict[int, subprocess.Popen[bytes]] = {}


def _exit_code(pid: int) -> int | None:
    """Give the exit code of a child of this program that ends; of another's child it is not known."""
    child = _children.get(pid)
    try:
        return None if child is None else child.wait(_EXIT_WAIT_S)
    except subprocess.TimeoutExpired:
        return None


def launch(*, port: int, dies_with_us: bool) -> LocalServer:
    """Start the server; it is not ready yet.

    Args:
        dies_with_us: it gets TERM when this program ends, however it ends.
    """
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    if running := recorded():
        raise UsageError(
            found=f"a server runs already: {running.process}, {running.endpoint.url}",
            expected="one at a time under this build folder",
            remedy="run `./inv stop`, or use it: `./inv ask QUESTION`",
        )
    require_free("127.0.0.1", port)
    instance = secrets.token_hex(8)
    settings = local_settings(load_serving(), port=port, instance=instance, folder=str(folder))
    file, log = folder / "settings.json", folder / "server.log"
    file.write_text(settings.model_dump_json(indent=1))
    (folder / "port.json").unlink(missing_ok=True)
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "dih20.serve", "--settings", str(file)],
            cwd=REPOSITORY,
            env=_environment(instance),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent if dies_with_us else None,
        )
    _children[child.pid] = child
    try:
        return _recorded_once_listening(child, settings, log, port)
    except BaseException:  # an interrupt as well: nobody would find this server again
        child.terminate()
        raise


def _recorded_once_listening(
    child: subprocess.Popen[bytes], settings: Settings, log: Path, port: int
) -> LocalServer:
    process = find(child.pid)
    if process is None:
        raise NotServing(
            found=f"the server ended at once, with {child.wait()}",
            expected="a process that lives",
            remedy=f"read {shown(log)}",
        )
    bound = port or _bound_port(state_folder() / "port.json", child, log)
    server = _server(process, settings, log, bound)
    _write_state(server)
    return server


def _server(process: Process, settings: Settings, log: Path, port: int) -> LocalServer:
    deadlines = settings.deadlines
    return LocalServer(
        process=process,
        instance=settings.instance,
        port=port,
        log=log,
        model=settings.served_name,
        drain_s=deadlines.drain_timeout_s + deadlines.close_timeout_s,
    )


def _environment(instance: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    return {**os.environ, MARK: instance, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _end_with_parent() -> None:
    import ctypes
    import signal

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _bound_port(file: Path, child: subprocess.Popen[bytes], log: Path) -> int:
    """Wait for the port that a server with port 0 was given."""
    while not file.exists():
        if child.poll() is not None:
            raise NotServing(
                found=f"the server ended with {child.returncode} before it listened",
                expected="a server that listens",
                remedy=f"read {shown(log)}",
            )
        time.sleep(0.05)
    port: int = json.loads(file.read_text())["port"]
    return port


def require_free(host: str, port: int) -> None:
    """Raise UnfitToServe when something listens on the port already; UsageError when it is none."""
    if not 0 <= port <= 65535:
        raise UsageError(
            found=f"port {port}",
            expected="0 to 65535; 0 takes any free one",
            remedy="correct --port",
        )
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as taken:
            raise UnfitToServe(
                found=f"{host}:{port} cannot be used: {taken.strerror}",
                expected="a free port",
                remedy=f"see who has it with `ss -ltnp 'sport = :{port}'`, or choose another with --port",
            ) from taken


def _write_state(server: LocalServer) -> None:
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
    (state_folder() / "server.json").unlink(missing_ok=True)
    if child := _children.pop(server.process.pid, None):
        child.wait()
