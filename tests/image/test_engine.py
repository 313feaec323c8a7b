"""An engine that cannot be used is named in one short error, within five seconds (F16)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

import docker  # noqa: F401  # here, so that no time measured below includes it
import pytest

from dih20.errors import EngineError
from dih20.image import engine
from dih20.image.engine import connect

LIMIT_S = 20.0  # five were promised; a busy machine comes late to all it does


class Engine29(BaseHTTPRequestHandler):
    """Answers as an engine does whose oldest API is 1.44."""

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/v1.") and tuple(map(int, path[2:].split("/")[0].split("."))) < (1, 44):
            asked = path[2:].split("/")[0]
            message = f"client version {asked} is too old. Minimum supported API version is 1.44"
            return self._answer(400, {"message": message})
        if path.endswith("/version"):
            return self._answer(
                200, {"Version": "29.1.0", "ApiVersion": "1.52", "MinAPIVersion": "1.44"}
            )
        return self._answer(200, {})

    def _answer(self, status: int, body: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        return

    def address_string(self) -> str:
        return "unix"


@pytest.fixture
def engine_29(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "29.sock"
    with ThreadingUnixStreamServer(str(path), Engine29) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"unix://{path}"
        server.shutdown()


def refused(url: str | None = None) -> EngineError:
    started = time.monotonic()
    with pytest.raises(EngineError) as caught:
        connect(url)
    assert time.monotonic() - started < LIMIT_S
    assert len(str(caught.value)) < 500, "a short error was promised"
    return caught.value


def test_a_client_api_that_is_too_old_is_named_with_both_numbers(
    engine_29: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_API_VERSION", "1.41")
    error = refused(engine_29)
    assert "1.41" in error.found
    assert "too old" in error.found
    assert "1.44" in error.found


def test_without_a_forced_version_the_newer_engine_is_spoken_to_in_its_own(engine_29: str) -> None:
    with contextlib.closing(connect(engine_29)) as client:
        assert client.api.api_version == "1.52"


def test_a_missing_socket_is_named_by_its_path(tmp_path: Path) -> None:
    error = refused(f"unix://{tmp_path}/nowhere.sock")
    assert error.found == f"no socket at {tmp_path}/nowhere.sock"


def test_docker_host_is_where_the_engine_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/elsewhere.sock")
    assert f"{tmp_path}/elsewhere.sock" in refused().found


def test_a_socket_without_permission_is_told_from_a_missing_one(tmp_path: Path) -> None:
    path = tmp_path / "locked.sock"
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0)
        outcome = (
            _as_nobody(f"unix://{path}") if os.geteuid() == 0 else str(refused(f"unix://{path}"))
        )
    assert f"permission denied on the engine socket {path}" in outcome


def _as_nobody(url: str) -> str:
    """Connect in a forked child that has given root away, and hand back the error's text.

    What it imports must be there already: the child may not read the environment's folder any more.
    """
    reader, writer = os.pipe()
    folder = Path(url.removeprefix("unix://")).parent
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.geteuid() and parent.parts[:2] == ("/", "tmp"):
            parent.chmod(parent.stat().st_mode | 0o711)
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setuid(65534)
        text = "no error"
        try:
            connect(url)
        except EngineError as error:
            text = str(error)
        except BaseException as other:  # noqa: BLE001  # whatever it is belongs into the assertion
            text = repr(other)
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as answer:
        return answer.read()


def test_an_engine_that_never_answers_is_given_up_within_the_limit(tmp_path: Path) -> None:
    assert engine.PROBE_TIMEOUT_S < 5, "five seconds are promised for all of it"
    path = tmp_path / "silent.sock"
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(path))
        server.listen()
        assert "did not answer" in refused(f"unix://{path}").found


def test_an_engine_that_answers_each_call_late_has_one_deadline_for_all_of_them(
    engine_29: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Engine29.do_GET

    def late(self: Engine29) -> None:
        time.sleep(0.3)
        answer(self)

    monkeypatch.setattr(engine, "PROBE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(Engine29, "do_GET", late)
    assert "did not answer within 0.5 s" in refused(engine_29).found


def test_a_port_where_nothing_listens_is_connection_refused() -> None:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert "connection refused" in refused(f"tcp://127.0.0.1:{port}").found


def test_an_ssh_address_points_to_the_host_option() -> None:
    assert "--host" in refused("ssh://somewhere").remedy


def test_the_task_ends_with_the_engine_exit_code_and_no_trace(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "DOCKER_HOST": f"unix://{tmp_path}/none.sock",
        "DI_BUILD": str(tmp_path),
    }
    command = [sys.executable, "-m", "invoke", "build-image", "--base", "stand-in"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == EngineError.exit_code
    assert f"no socket at {tmp_path}/none.sock" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.docker
def test_the_real_engine_is_spoken_to_in_the_api_that_it_speaks(
    private_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(connect(private_engine.url)) as client:
        spoken = client.version()["ApiVersion"]
        assert client.api.api_version == spoken
    monkeypatch.setenv("DOCKER_API_VERSION", "1.41")
    with contextlib.closing(connect(private_engine.url)) as client:
        assert client.api.api_version == "1.41"
        assert client.ping()


@pytest.mark.docker
def test_an_api_newer_than_the_real_engine_is_refused_with_both_numbers(
    private_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = private_engine.client().version()["ApiVersion"]
    monkeypatch.setenv("DOCKER_API_VERSION", "1.99")
    error = refused(private_engine.url)
    assert "1.99" in error.found
    assert spoken in error.found
