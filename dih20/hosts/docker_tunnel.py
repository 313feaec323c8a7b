"""A Docker client on a host without opening a port there: a local socket, carried over SSH.

Each connection that the client makes to the socket runs `docker system dial-stdio` on the host and
carries bytes both ways. The socket lies in a folder that only this user can enter.
"""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
import paramiko
import requests
from docker.transport import UnixHTTPAdapter

from dih20.errors import EngineError, HostError
from dih20.hosts.docker_cli import docker_environment, docker_path

if TYPE_CHECKING:
    from dih20.hosts.ssh import SshRunner

_CHUNK_BYTES = 1 << 18
_ANSWER_TIMEOUT_S = 600
# Each pooled connection holds a session of the SSH connection, and sshd counts those.
_POOLED = 4


@contextmanager
def docker_client(runner: SshRunner) -> Iterator[docker.DockerClient]:
    """Give a client that talks to the host's engine; EngineError says why it does not."""
    with tempfile.TemporaryDirectory(prefix="dih20-") as folder:  # made with mode 0700
        tunnel = Tunnel(runner, Path(folder) / "docker.sock")
        try:
            yield _client(tunnel, runner)
        finally:
            tunnel.close()


class _OnePool(UnixHTTPAdapter):
    """Use one pool for all requests: the SDK keeps one per URL, each with a connection of its own."""

    def get_connection(self, url: Any, proxies: Any = None) -> Any:
        return super().get_connection("", proxies)


def _client(tunnel: Tunnel, runner: SshRunner) -> docker.DockerClient:
    base_url = f"unix://{tunnel.path}"
    try:
        client = docker.DockerClient(base_url=base_url, version="auto", timeout=_ANSWER_TIMEOUT_S)
        client.api.close()
        adapter = _OnePool(f"http+{base_url}", timeout=_ANSWER_TIMEOUT_S, max_pool_size=_POOLED)
        client.api.mount("http+docker://", adapter)
        return client
    except (docker.errors.DockerException, requests.RequestException) as fault:
        said = tunnel.last_words or str(fault)
        raise EngineError(
            found=f"the Docker engine on {runner.name} does not answer: {said}",
            expected="an engine behind `docker system dial-stdio`, usable by this login",
            remedy="on the host run `docker version`; put the user into group docker, start the engine, or set "
            f"docker_socket in configs/hosts/{runner.name}.yaml",
        ) from fault


class Tunnel:
    """Accept connections on a local socket, and carry each over a channel of its own."""

    def __init__(self, runner: SshRunner, path: Path) -> None:
        self.path = path
        self.last_words = ""
        self._runner = runner
        self._argv = [docker_path(runner), "system", "dial-stdio"]
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # shutdown wakes the thread in accept(), which close alone does not
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(connection,), daemon=True).start()

    def _carry(self, connection: socket.socket) -> None:
        from dih20.hosts.ssh import command_line

        # What went wrong is kept before the client sees its connection end: it reads the words then.
        with connection:
            try:
                with self._runner.session() as channel:
                    channel.exec_command(
                        command_line(self._argv, docker_environment(self._runner.host))
                    )
                    _start(_outward, connection, channel)
                    complaints = _start(self._listen, channel)
                    _inward(connection, channel)
                    complaints.join(2.0)
                    connection.shutdown(socket.SHUT_RDWR)
            except (HostError, paramiko.SSHException, OSError) as fault:
                self.last_words = getattr(fault, "found", str(fault))

    def _listen(self, channel: paramiko.Channel) -> None:
        text = b""
        while piece := channel.recv_stderr(4096):
            text = (text + piece)[-2000:]
        if text:
            self.last_words = text.decode(errors="replace").strip()


def _start(work: Callable[..., None], *given: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=given, daemon=True)
    thread.start()
    return thread


def _outward(connection: socket.socket, channel: paramiko.Channel) -> None:
    try:
        while piece := connection.recv(_CHUNK_BYTES):
            channel.sendall(piece)
        channel.shutdown_write()
    except OSError:
        pass  # the other direction sees the same end and closes both


def _inward(connection: socket.socket, channel: paramiko.Channel) -> None:
    while piece := channel.recv(_CHUNK_BYTES):
        connection.sendall(piece)
