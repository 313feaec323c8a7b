"""`pip install -e .` gives the same tasks to a plain `invoke`. Needs the package index, as ./inv does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dih20.errors import INTERNAL_FAULT

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.docker
def test_an_editable_install_runs_tasks_by_plain_invoke(
    checkout: Path, run_clean: Run, private_engine: Any, tmp_path: Path
) -> None:
    fresh = tmp_path / "fresh"
    made = run_clean(sys.executable, "-m", "venv", str(fresh))
    assert made.returncode == 0, made.stderr
    pip = [str(fresh / "bin/python"), "-m", "pip", "install", "-q", "--no-compile"]
    installed = run_clean(*pip, "-e", ".", cwd=checkout)
    assert installed.returncode == 0, installed.stderr

    listed = run_clean(str(fresh / "bin/invoke"), "--list", cwd=checkout)
    assert listed.returncode == 0, listed.stderr
    for name in ("build-vendor", "patch", "doctor"):
        assert name in listed.stdout

    command = ["build-vendor", "--plan"]
    engine = {"DOCKER_HOST": private_engine.url}
    plain = run_clean(str(fresh / "bin/invoke"), *command, cwd=checkout, env=engine)
    launched = run_clean(
        str(checkout / "inv"), *command, cwd=checkout, env={**engine, "DI_PYTHON": sys.executable}
    )
    assert plain.stdout == launched.stdout != ""
    assert plain.returncode == launched.returncode != INTERNAL_FAULT
    assert "No module named" not in plain.stderr + plain.stdout
    assert "Traceback" not in plain.stderr + plain.stdout
