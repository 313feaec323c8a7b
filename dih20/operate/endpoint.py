"""HTTP to a server: on this machine, or through the SSH connection to its host."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dih20.hosts.ssh import SshRunner

Connect = Callable[[str, int, float], Any]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a server answered."""

    status: int
    body: bytes

    @property
    def values(self) -> dict[str, Any]:
        """Give the JSON object in the body; empty when it holds none."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class _Held:
    """A byte stream that stays open while a response is read from it.

    http.client closes its socket before the body is read when the server will close too. A socket's
    file keeps it open for that long; an SSH channel's does not, and what is still on its way is lost.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.sendall, self.makefile = stream.sendall, stream.makefile

    def close(self) -> None:
        """Leave it open: whoever made the connection closes the stream."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, host: str, port: int, timeout_s: float, connect: Connect) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._connect, self._timeout_s = connect, timeout_s
        self._stream: Any = None

    def connect(self) -> None:
        self._stream = self._connect(self.host, self.port, self._timeout_s)
        self.sock = _Held(self._stream)

    def end(self) -> None:
        """Close the stream itself."""
        if self._stream is not None:
            self._stream.close()


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a server listens. `connect` makes a byte stream to it; None is this machine's own way."""

    host: str
    port: int
    connect: Connect | None = None
    token: str = ""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def get(self, path: str, timeout_s: float = 10.0) -> Reply | None:
        """Give what the server answers, or None when nothing does."""
        return self._ask("GET", path, None, timeout_s)

    def post(self, path: str, values: Mapping[str, Any], timeout_s: float = 300.0) -> Reply | None:
        return self._ask("POST", path, json.dumps(values).encode(), timeout_s)

    def _ask(self, method: str, path: str, body: bytes | None, timeout_s: float) -> Reply | None:
        connection = (
            _Connection(self.host, self.port, timeout_s, self.connect)
            if self.connect
            else http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        )
        headers = {"content-type": "application/json"} if body is not None else {}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return Reply(status=answer.status, body=answer.read())
        except (OSError, EOFError, http.client.HTTPException):
            return None
        finally:
            connection.close()
            if isinstance(connection, _Connection):
                connection.end()


def through(runner: SshRunner, port: int, *, host: str = "127.0.0.1", token: str = "") -> Endpoint:
    """Give the endpoint of a server that listens on a host's own loopback."""

    def connect(to: str, at: int, timeout_s: float) -> Any:
        return runner.tcp(to, at, timeout_s=timeout_s)

    return Endpoint(host=host, port=port, connect=connect, token=token)
