"""HTTP first, then the engine: one process, one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from dih20.errors import ConfigError, ServeError
from dih20.serve.api.app import make_app
from dih20.serve.api.protocol import enforce_deadlines, limited
from dih20.serve.log import say
from dih20.serve.service import Service
from dih20.serve.settings import Settings
from dih20.serve.state import write_json

_OTHER_FILES = 256  # pipes to ranks, the log, modules being imported
_IDLE_S = 30.0  # of a connection between two requests


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: the service drains first."""
        yield


def _quiet_collector() -> None:
    """Leave what lives for ever out of every collection: a full one stops all streams for 30 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def make_room(connections: int) -> None:
    """Let this process hold so many connections: by default 1024 files may be open, of any kind."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    if hard < wanted and hard != resource.RLIM_INFINITY:
        raise ConfigError(
            found=f"this process may have {hard} files open",
            expected=f"{wanted}: limits.max_connections = {connections}, and {_OTHER_FILES} others",
            remedy="raise the limit (`ulimit -Hn`), or lower limits.max_connections",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def listen(settings: Settings) -> socket.socket:
    """Bind before anything is started, so that a taken port costs nothing."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
        bound.listen(2048)
    except OSError as fault:
        bound.close()
        raise ServeError(
            found=f"{settings.host}:{settings.port} cannot be listened on: {fault.strerror}",
            expected="an address of this machine and a free port",
            remedy="stop what holds the port (`ss -ltnp`), or choose another",
        ) from fault
    return bound


def _write_port_file(path: Path, about: dict[str, Any]) -> None:
    try:
        write_json(path, about)
    except OSError as fault:
        raise ConfigError(
            found=f"{path}: {fault.strerror}",
            expected="a place to write the port to",
            remedy="correct port_file",
        ) from fault


async def serve(settings: Settings) -> ServeError | None:
    """Serve until a signal or a fault; give the fault."""
    make_room(settings.limits.max_connections)
    bound = listen(settings)
    service = Service(settings)
    config = uvicorn.Config(
        make_app(service),
        http=limited(settings.limits),
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="error",
        server_header=False,
        timeout_keep_alive=int(_IDLE_S),
        timeout_graceful_shutdown=5,
        backlog=2048,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop)
    http = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started and not http.done():
        await asyncio.sleep(0.005)
    connections = server.server_state.connections
    watch = asyncio.create_task(enforce_deadlines(connections, settings.limits, _IDLE_S + 5))
    gpus = asyncio.create_task(service.watch_gpus())
    host, port = bound.getsockname()[:2]
    say(f"http://{host}:{port} instance {service.instance}")
    if settings.port_file:
        about = {"host": host, "port": port, "pid": os.getpid(), "instance": service.instance}
        _write_port_file(settings.port_file, about)
    _quiet_collector()
    try:
        return await service.run()
    finally:
        watch.cancel()
        gpus.cancel()
        server.should_exit = True
        await http
