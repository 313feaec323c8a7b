"""Serve on this machine, for real: the canary by the reference model, found again, asked and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import dih20.groups
from dih20.console import Console, Step
from dih20.errors import NotServing, UnfitToServe, UsageError
from dih20.operate import launch, local, local_life, processes, state
from dih20.operate.watch import Ready
from dih20.paths import REPOSITORY

FAKE = Path(__file__).with_name("fake_server.py")


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


@pytest.fixture
def sleeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: None
) -> Iterator[local.LocalServer]:
    """A process that takes the place of a server which is ready at once."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = processes.find(child.pid)
    assert process is not None
    log = tmp_path / "log"
    log.write_text("a line of the log\n")
    server = local.LocalServer(
        process=process, instance="none", port=1, log=log, model="canary", drain_s=1.0
    )
    monkeypatch.setitem(local.children, child.pid, child)
    monkeypatch.setattr(launch, "launch", lambda **_: server)
    ready = Ready(seconds=1.0, gate={}, version={})
    monkeypatch.setattr(local_life, "_wait", lambda ui, server: ready)
    yield server
    child.kill()
    child.wait()


@pytest.mark.parametrize("moment", ["answers at", "curl", "Ctrl-C ends it", "a line of the log"])
def test_an_interrupt_at_any_moment_ends_the_server(
    moment: str, sleeper: local.LocalServer, monkeypatch: pytest.MonkeyPatch, ui: Console
) -> None:
    """An interrupt comes where it wants: while a line is printed as well."""
    line = ui.line

    def interrupted(text: str = "", **style: str) -> None:
        line(text, **style)
        if moment in text:
            raise KeyboardInterrupt

    monkeypatch.setattr(ui, "line", interrupted)
    local_life.serve(ui, port=0, detach=False, only_plan=False)
    assert not processes.lives(sleeper.process)


@pytest.mark.parametrize("detach", [True, False])
def test_an_interrupt_while_the_start_is_printed_ends_the_server(
    detach: bool, sleeper: local.LocalServer, monkeypatch: pytest.MonkeyPatch, ui: Console
) -> None:
    print_step = ui._print_step

    def interrupted(step: Step) -> None:
        print_step(step)
        if step.verb == "start":
            raise KeyboardInterrupt

    monkeypatch.setattr(ui, "_print_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        local_life.serve(ui, port=0, detach=detach, only_plan=False)
    assert not processes.lives(sleeper.process)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that is launched is the fake one."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {FAKE} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(launch, "sys", SimpleNamespace(executable=str(python)))


def test_a_launch_that_is_broken_off_leaves_nothing_and_another_works_at_once(
    fake: None, monkeypatch: pytest.MonkeyPatch, ui: Console
) -> None:
    """The server ignores TERM, and has workers in sessions of their own that do so too."""
    instances: list[str] = []

    def interrupted(server: local.LocalServer) -> None:
        instances.append(server.instance)
        local.write_state(server)
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setenv("FAKE_ACT", "stubborn")
        broken.setattr(launch, "write_state", interrupted)
        broken.setattr(launch, "_END_WAIT_S", 0.5)
        with pytest.raises(KeyboardInterrupt):
            launch.launch(port=0, dies_with_us=False)
    left = processes.marked(instances[0])
    processes.kill(left, wait_s=60)
    assert left == []
    server = launch.launch(port=0, dies_with_us=False)
    assert local_life.stop_server(ui, server)["ended_by"] == "TERM"


def test_of_two_launches_at_once_one_is_refused_and_the_other_stays_recorded(
    fake: None, ui: Console
) -> None:
    def attempt(_: int) -> local.LocalServer | UsageError:
        try:
            return launch.launch(port=0, dies_with_us=False)
        except UsageError as refused:
            return refused

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(attempt, range(2)))
    servers = [one for one in outcomes if isinstance(one, local.LocalServer)]
    recorded = local.recorded()
    for server in servers:
        local_life.stop_server(ui, server)
    assert recorded is not None
    assert [server.instance for server in servers] == [recorded.instance], outcomes


def test_what_another_server_has_recorded_is_not_forgotten_with_the_first(
    sleeper: local.LocalServer,
) -> None:
    local.state_folder().mkdir(parents=True)
    local.write_state(replace(sleeper, instance="another"))
    local.forget(replace(sleeper, process=replace(sleeper.process, pid=0)))
    recorded = local.recorded()
    assert recorded is not None
    assert recorded.instance == "another"


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
    monkeypatch.setitem(local.children, child.pid, child)
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
        launch.require_free("127.0.0.1", port)
