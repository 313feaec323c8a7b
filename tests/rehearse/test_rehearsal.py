"""The whole way, for real: what a newcomer types first."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from dih20.paths import REPOSITORY

pytestmark = [pytest.mark.docker, pytest.mark.ssh, pytest.mark.timeout(1500)]


def test_the_rehearsal_goes_the_whole_way_and_leaves_nothing_running() -> None:
    before = set(Path("/run").iterdir())
    command = ["./inv", "rehearse", "--json"]
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
    left = {path for path in set(Path("/run").iterdir()) - before if path.name.startswith("dih20-")}
    assert not left
    engines = Path("/proc/self/mountinfo").read_text()
    assert "/rehearsal/host-engine/" not in engines
