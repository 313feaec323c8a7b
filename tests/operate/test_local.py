"""Serve on this machine, for real: the canary by the reference model, found again, asked and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dih20.groups
from dih20.console import Console
from dih20.errors import NotServing, UnfitToServe, UsageError
from dih20.operate import local, local_life, processes, state
from dih20.operate.watch import Ready
from dih20.paths import REPOSITORY


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages of the server are here already: tests do not install any."""
    monkeypatch.setattr(dih20.groups, "ensure", lambda ui, group: None)


@pytest.mark.torch
def test_the_canary_is_served_found_again_asked_and_ended_without_a_trace(
    installed: None, ui: Console
) -> None:
    with pytest.raises(NotServing, match="no server runs here"):
        state.status(ui, "")
    told = local_life.serve(ui, port=0, detach=True, only_plan=False)
    try:
        assert told["gate"]["state"] == "passed"
        with pytest.raises(UsageError, match="runs already"):
            local_life.serve(ui, port=0, detach=True, only_plan=False)
        answer = state.ask(ui, "", "法国的首都是哪里？", max_tokens=8)
        assert (answer["text"], answer["verdict"]) == ("巴黎", "")
        seen = state.status(ui, "")
        assert (seen["start"]["phase"], seen["start"]["instance"]) == ("ready", told["instance"])
        assert state.logs(ui, "", follow=False, rank=None, tail=0)["lines"]
        assert len(processes.marked(told["instance"])) >= 2  # the server and its rank
    finally:
        ended = local_life.stop(ui, only_plan=False)
    assert ended == {"ended_by": "TERM", "killed": []}
    assert processes.marked(told["instance"]) == []
    assert local.recorded() is None


@pytest.mark.parametrize("moment", ["answers at", "curl", "Ctrl-C ends it", "a line of the log"])
def test_an_interrupt_at_any_moment_ends_the_server(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ui: Console
) -> None:
    """An interrupt comes where it wants: while a line is printed as well."""
    monkeypatch.setattr(dih20.groups, "ensure", lambda ui, group: None)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = processes.find(child.pid)
    assert process is not None
    log = tmp_path / "log"
    log.write_text("a line of the log\n")
    server = local.LocalServer(
        process=process, instance="none", port=1, log=log, model="canary", drain_s=1.0
    )
    monkeypatch.setitem(local._children, child.pid, child)
    monkeypatch.setattr(local, "launch", lambda **_: server)
    monkeypatch.setattr(
        local_life, "_wait", lambda ui, server: Ready(seconds=1.0, gate={}, version={})
    )
    line = ui.line

    def interrupted(text: str = "", **style: str) -> None:
        line(text, **style)
        if moment in text:
            raise KeyboardInterrupt

    monkeypatch.setattr(ui, "line", interrupted)
    local_life.serve(ui, port=0, detach=False, only_plan=False)
    assert child.returncode == -signal.SIGTERM
    assert not processes.lives(process)


@pytest.mark.torch
def test_ctrl_c_ends_a_server_in_the_foreground(tmp_path: Path) -> None:
    """`inv serve` as a person starts it; the interrupt comes once it says how to end it."""
    script = (
        "import dih20.groups as g; g.ensure = lambda ui, group: None\n"
        "from dih20.console import Console\nfrom dih20.operate import local_life\n"
        "local_life.serve(Console(), port=0, detach=False, only_plan=False)\n"
    )
    env = {**os.environ, "DI_BUILD": str(tmp_path / "build"), "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    lines: list[str] = []
    for line in child.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            child.send_signal(signal.SIGINT)
            break
    rest = child.stdout.read()
    assert child.wait(90) == 0, "".join(lines) + rest
    assert "by TERM" in rest
    settings = json.loads((tmp_path / "build/serve/settings.json").read_text())
    assert len(settings["instance"]) == 16
    assert processes.marked(settings["instance"]) == []


def test_a_taken_port_is_said_before_anything_is_started(installed: None, ui: Console) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UnfitToServe, match="cannot be used"):
            local_life.serve(ui, port=taken.getsockname()[1], detach=True, only_plan=False)
    assert local.recorded() is None


def test_processes_that_ignore_term_are_found_by_their_mark_and_killed(tmp_path: Path) -> None:
    """F53: a server and a worker in a session of its own, both deaf to TERM."""
    worker = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    script = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {worker!r}], start_new_session=True)\n{worker}"
    )
    env = {**os.environ, processes.MARK: "mark-of-a-test"}
    server = subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, start_new_session=True
    )
    assert server.stdout is not None
    assert [server.stdout.readline() for _ in range(2)] == [b"1\n", b"1\n"]
    found = processes.marked("mark-of-a-test")
    assert len(found) == 2
    main = next(process for process in found if process.pid == server.pid)
    assert not processes.end(main, wait_s=0.5)
    assert processes.kill(found, wait_s=30) == []
    assert processes.marked("mark-of-a-test") == []
    server.stdout.close()


def test_a_pid_that_was_given_to_another_process_is_not_ours() -> None:
    me = processes.find(os.getpid())
    assert me is not None
    assert processes.lives(me)
    assert not processes.lives(processes.Process(pid=me.pid, born=me.born - 1, command="old"))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    time.sleep(0)
    assert processes.find(gone.pid) is None


def test_a_server_whose_first_thread_has_ended_lives_until_the_others_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is a zombie already, and its port, its memory and its exit code are not free yet."""
    script = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    child = subprocess.Popen([sys.executable, "-c", script])
    process = processes.find(child.pid)
    assert process is not None
    monkeypatch.setitem(local._children, child.pid, child)
    server = local.LocalServer(
        process=process, instance="none", port=1, log=tmp_path, model="canary", drain_s=1.0
    )
    stat = Path(f"/proc/{child.pid}/stat")
    until = time.monotonic() + 60
    try:
        while ") Z " not in stat.read_text():
            assert time.monotonic() < until
            time.sleep(0.01)
        assert server.life().is_running
        assert processes.kill([process], wait_s=60) == []
        assert server.life().exit_code == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_a_usage_error(port: int) -> None:
    with pytest.raises(UsageError, match=f"port {port}"):
        local.require_free("127.0.0.1", port)
