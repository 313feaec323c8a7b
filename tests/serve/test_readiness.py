"""F51: readiness follows progress and a right answer, not a clock."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from dih20.errors import EngineStartFailed, GateFailed
from tests.serve.exchange import post, say
from tests.serve.running import Server

DIES = ["the weights of layer 7 are not there", "exit 3"]
LINGER = {"failed_linger_s": 60}
PATIENCE_S = 10  # an engine on a busy machine needs some of it to say its first word


def failed(server: Server) -> dict[str, str]:
    """Wait for the failure and give what the server says about it."""
    server.wait_until(lambda: server.json("/startupz")["phase"] == "failed", "the failure")
    found: dict[str, str] = server.json("/startupz")
    assert server.get("/readyz")[0] == 503
    assert server.get("/livez")[0] == 200
    return found


def test_a_slow_start_that_makes_progress_is_waited_for(tmp_path: Path) -> None:
    """Meanwhile requests are refused with the phase, and told to come back."""
    options = {"start": ["part 1 of 2", 0.5] * 22}
    deadlines = {"no_progress_timeout_s": PATIENCE_S}
    with Server(tmp_path, ready=False, engine_options=options, deadlines=deadlines) as server:
        assert server.get("/livez")[0] == 200
        assert server.get("/readyz")[0] == 503
        assert server.json("/startupz")["eta_s"] is None
        server.wait_until(lambda: "part 1" in server.json("/startupz")["progress_line"], "a line")
        assert server.json("/startupz")["fraction"] == 0.5
        refused = say(server, post("/v1/completions", b'{"model":"canary","prompt":"1"}'))
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) > 0
        assert "loading" in refused.error()["message"]
        server.wait_ready()
        assert server.json("/startupz")["elapsed_s"] > PATIENCE_S


def test_a_silent_start_fails_by_the_setting_that_it_names(tmp_path: Path) -> None:
    deadlines = LINGER | {"no_progress_timeout_s": PATIENCE_S}
    with Server(
        tmp_path,
        ready=False,
        engine_options={"start": ["part 1 of 2", "hang"]},
        deadlines=deadlines,
    ) as server:
        reason = failed(server)["reason"]
        assert "part 1 of 2" in reason
        server.process.terminate()
        assert server.wait_exit() == EngineStartFailed.exit_code
        assert f"no_progress_timeout_s = {PATIENCE_S} s" in server.log_tail()


def test_a_start_that_dies_fails_at_once_with_code_and_last_lines(tmp_path: Path) -> None:
    with Server(tmp_path, ready=False, engine_options={"start": DIES}, deadlines=LINGER) as server:
        began = time.monotonic()
        reason = failed(server)["reason"]
        assert time.monotonic() - began < 30, "no_progress_timeout_s is 600 s here"
        assert "exit code 3" in reason
        assert "the weights of layer 7 are not there" in reason
        server.process.terminate()
        assert server.wait_exit() == EngineStartFailed.exit_code


@pytest.mark.parametrize(
    ("end_slowly", "close_timeout_s", "how"),
    [
        (2, 60, "ended with exit code 1: RuntimeError"),
        (
            600,
            0.5,
            "from the server: it closed its channel and did not end in close_timeout_s = 0.5 s",
        ),
    ],
)
def test_a_rank_that_fails_has_time_to_end_and_is_not_said_to_be_killed_unless_it_was(
    end_slowly: int, close_timeout_s: float, how: str, tmp_path: Path
) -> None:
    """What of its own code and of its GPU is still to be ended takes a rank seconds."""
    options = {"start": [f"end slowly {end_slowly}", "crash"]}
    deadlines = LINGER | {"close_timeout_s": close_timeout_s}
    with Server(tmp_path, ready=False, engine_options=options, deadlines=deadlines) as server:
        assert how in failed(server)["reason"]


@pytest.mark.parametrize(
    ("options", "gate_timeout_s", "why"),
    [
        ({"stall_after": 1}, 1, "gate_timeout_s = 1 s"),
        ({"answer": "wrong"}, 60, "known are"),
    ],
)
def test_an_engine_that_stands_but_does_not_answer_right_is_never_ready(
    options: dict[str, object], gate_timeout_s: int, why: str, tmp_path: Path
) -> None:
    deadlines = LINGER | {"gate_timeout_s": gate_timeout_s}
    with Server(tmp_path, ready=False, engine_options=options, deadlines=deadlines) as server:
        assert why in failed(server)["reason"]
        assert server.get("/health")[0] == 503
        server.process.terminate()
        assert server.wait_exit() == GateFailed.exit_code


def test_the_next_start_knows_how_long_the_last_took(server: Server, tmp_path: Path) -> None:
    shutil.copytree(server.folder / "state", tmp_path / "state")
    # it is asked while it starts, however long that takes
    with Server(tmp_path, ready=False, engine_options={"start": ["hang"]}) as again:
        eta_s = again.json("/startupz")["eta_s"]
        assert eta_s is not None and 0 <= eta_s < 60
        again.process.kill()
        again.wait_exit()
