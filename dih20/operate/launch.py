"""Start a server on this machine: one at a time, and all of it or nothing."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

from dih20.errors import NotServing, UnfitToServe, UsageError
from dih20.file_guard import only_holder
from dih20.operate.local import (
    LocalServer,
    children,
    drop_record,
    exit_code,
    recorded,
    state_folder,
    write_state,
)
from dih20.operate.processes import MARK, Process, find, kill, marked
from dih20.operate.serving import load_serving, local_settings
from dih20.paths import REPOSITORY, shown
from dih20.serve.settings import Settings

_END_WAIT_S = 15.0


def launch(*, port: int, dies_with_us: bool) -> LocalServer:
    """Start the server; it is not ready yet. What a launch that fails has started is ended.

    Args:
        dies_with_us: it gets TERM when this program ends, however it ends.
    """
    folder = state_folder()
    with only_holder(folder / "launch.guard"):  # another launch is recorded, or has failed, by then
        if running := recorded():
            raise UsageError(
                found=f"a server runs already: {running.process}, {running.endpoint.url}",
                expected="one at a time under this build folder",
                remedy="run `./inv stop`, or use it: `./inv ask QUESTION`",
            )
        require_free("127.0.0.1", port)
        instance = secrets.token_hex(8)
        settings = local_settings(load_serving(), port=port, instance=instance, folder=str(folder))
        log = folder / "server.log"
        child = None
        try:
            child = _start(settings, log, dies_with_us=dies_with_us)
            return _recorded_once_listening(child, settings, log, port)
        except BaseException:  # an interrupt as well: nobody would find this server again
            _clear_away(instance, child)
            raise


def _start(settings: Settings, log: Path, *, dies_with_us: bool) -> subprocess.Popen[bytes]:
    file = state_folder() / "settings.json"
    file.write_text(settings.model_dump_json(indent=1))
    (state_folder() / "port.json").unlink(missing_ok=True)
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "dih20.serve", "--settings", str(file)],
            cwd=REPOSITORY,
            env=_environment(settings.instance),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent if dies_with_us else None,
        )
    children[child.pid] = child
    return child


def _clear_away(instance: str, child: subprocess.Popen[bytes] | None) -> None:
    """End what a failed launch has started, so that another one can follow at once."""
    if child is not None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_END_WAIT_S)
    kill(marked(instance), wait_s=_END_WAIT_S)
    drop_record(instance)
    if child is not None:
        exit_code(child.pid)
        children.pop(child.pid)


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
    bound = port or bound_port(state_folder() / "port.json", child, log)
    server = _server(process, settings, log, bound)
    write_state(server)
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


def bound_port(file: Path, child: subprocess.Popen[bytes], log: Path) -> int:
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
