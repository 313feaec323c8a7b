"""F51: readiness by progress, against four fake servers and two more ways to be wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dih20.console import Console
from dih20.errors import EngineStartFailed, GateFailed, NotServing, ToolError
from dih20.operate import watch
from dih20.operate.judged import ask
from dih20.operate.launch import bound_port
from dih20.operate.local import LocalServer, children
from dih20.operate.processes import find
from dih20.operate.watch import Ready, wait_ready

FAKE = Path(__file__).with_name("fake_server.py")
Start = Callable[[str], LocalServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Give a function that starts the fake server with an act."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(act: str) -> LocalServer:
        log, file, port_file = (tmp_path / name for name in ("log", "settings.json", "port.json"))
        settings = {"host": "127.0.0.1", "port": 0, "port_file": str(port_file)}
        named = {"instance": "mine", "served_name": "canary", "identities": {}}
        file.write_text(json.dumps({**settings, **named}))
        with log.open("wb") as out:
            child = subprocess.Popen(
                [sys.executable, str(FAKE), "--settings", str(file)],
                env={**os.environ, "FAKE_ACT": act},
                stdout=out,
                stderr=out,
            )
        started.append(child)
        children[child.pid] = child
        process = find(child.pid)
        assert process is not None
        port = bound_port(port_file, child, log)
        return LocalServer(
            process=process, instance="mine", port=port, log=log, model="canary", drain_s=1.0
        )

    yield begin
    for child in started:
        child.kill()
        child.wait()


def wait(server: LocalServer, timeout_s: float = 600.0) -> Ready:
    return wait_ready(
        Console(as_json=True),
        server,
        server.instance,
        no_progress_timeout_s=timeout_s,
        answer=partial(_one_token, server),
    )


def _one_token(server: LocalServer) -> None:
    ask(server.endpoint, "canary", "x", max_tokens=1)


def test_a_slow_start_with_progress_is_waited_for(start: Start) -> None:
    ready = wait(start("slow"), timeout_s=1.0)
    assert ready.seconds >= 1.5
    assert ready.gate == {"state": "passed"}


def test_a_silent_start_ends_at_the_deadline_that_names_itself_and_the_last_line(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_MARGIN_S", 1.0)
    server = start("silent")
    assert server.endpoint.get("/startupz", timeout_s=60) is not None
    with pytest.raises(EngineStartFailed) as failed:
        wait(server, timeout_s=0.5)
    assert "shard 1 of 9" in failed.value.found
    assert "no_progress_timeout_s" in failed.value.expected
    assert "0.5 s" in failed.value.expected


def test_a_death_is_an_immediate_failure_with_its_code_its_log_and_what_the_line_means(
    start: Start,
) -> None:
    began = time.monotonic()
    with pytest.raises(EngineStartFailed) as failed:
        wait(start("dies"))
    assert time.monotonic() - began < 60
    assert "exit code 3" in failed.value.found
    assert "CUDA driver version is insufficient" in failed.value.found
    assert "known: the driver is too old" in failed.value.found


def test_an_early_200_of_another_server_is_not_ours(start: Start) -> None:
    server = start("early")
    with pytest.raises(NotServing) as failed:
        wait(server)
    assert "it calls itself another" in failed.value.found
    assert "answers 200" in failed.value.found


def test_a_ready_server_that_gives_no_token_is_not_ready(start: Start) -> None:
    with pytest.raises(NotServing, match="no engine behind this"):
        wait(start("mute"))


def test_a_wrong_answer_of_the_gate_is_told_apart_from_a_death() -> None:
    fault: ToolError = watch._ended(_Dead(), "the engine's answer is wrong: 'x'", 83)
    assert isinstance(fault, GateFailed)
    assert isinstance(watch._ended(_Dead(), "", 81), EngineStartFailed)


class _Dead(LocalServer):
    def __init__(self) -> None:
        pass

    name = "the server"

    def tail(self, lines: int) -> list[str]:
        return ["last words"]
