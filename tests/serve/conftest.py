"""Servers that tests share: each test leaves them as it found them, idle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.running import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A ready server with small limits over a paced engine that steps every two milliseconds."""
    limits = {
        "body_bytes": 1 << 16,
        "default_max_tokens": 16,
        "max_queue": 4,
        "buffer_bytes": 1 << 16,
        "write_timeout_s": 1.5,
        "read_timeout_s": 1.5,
    }
    options = {"step_ms": 2, "seqs": 32, "echo": True, "max_model_len": 8192}
    folder = tmp_path_factory.mktemp("server")
    with Server(folder, engine_options=options, limits=limits) as running:
        yield running


@pytest.fixture
def idle(server: Server) -> Iterator[Server]:
    """The shared server; afterwards nothing may run or wait in it."""
    yield server
    server.wait_until(lambda: in_flight(server) == 0, "no request to be left", 20)


def in_flight(server: Server) -> int:
    return int(server.metric("dih20_serve_running") + server.metric("dih20_serve_waiting"))
