"""The whole way, for real: what a newcomer types first."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from dih20.paths import REPOSITORY

pytestmark = [pytest.mark.docker, pytest.mark.ssh, pytest.mark.timeout(1500)]


def test_the_rehearsal_goes_the_whole_way_and_leaves_nothing_running() -> None:
    mark = f"DI_REHEARSAL_OF={uuid.uuid4()}"  # every process below inherits it, however far it moves away
    command = ["env", mark, "./inv", "rehearse", "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    tail = "\n".join(done.stderr.splitlines()[-40:])
    assert done.returncode == 0, tail
    report = json.loads(done.stdout)
    stages = {stage["name"]: stage for stage in report["result"]["stages"]}
    assert list(stages) == [
        "prepare", "start", "lock", "fetch", "image", "wheels", "patch", "deploy", "deploy again",
        "verify",
    ]  # fmt: skip
    assert all(stage["status"] in ("ok", "warn") for stage in stages.values()), tail
    assert "not run: no GPU" in stages["deploy"]["showed"]
    assert left_running(mark) == []
    engines = Path("/proc/self/mountinfo").read_text()
    assert "/rehearsal/host-engine/" not in engines


def left_running(mark: str) -> list[str]:
    """Give what still runs after ten seconds: containerd's shims end a moment after their engine."""
    until = time.monotonic() + 10
    while (running := processes_with(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    return running


def processes_with(mark: str) -> list[str]:
    """Give the command lines of processes that have this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended while we looked, or guarded by the system: none of ours
    return found


def test_a_process_left_behind_is_seen() -> None:
    """Without this the check above could look in the wrong place."""
    mark = f"DI_REHEARSAL_OF={uuid.uuid4()}"
    assert processes_with(mark) == []
    left = subprocess.Popen(["env", mark, "sleep", "60"], start_new_session=True)
    try:
        until = time.monotonic() + 10
        while processes_with(mark) != ["sleep 60 "] and time.monotonic() < until:
            time.sleep(0.05)
        assert processes_with(mark) == ["sleep 60 "]
    finally:
        left.kill()
        left.wait()
