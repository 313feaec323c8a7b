"""`pip install -e .` gives the same tasks to a plain `invoke`. Needs the package index, as ./inv does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_an_editable_install_runs_tasks_by_plain_invoke(checkout: Path, tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("DI_") and k != "PYTHONPATH"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=checkout,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    fresh = tmp_path / "fresh"
    made = run(sys.executable, "-m", "venv", str(fresh))
    assert made.returncode == 0, made.stderr
    installed = run(str(fresh / "bin/python"), "-m", "pip", "install", "-q", "-e", ".")
    assert installed.returncode == 0, installed.stderr

    listed = run(str(fresh / "bin/invoke"), "--list")
    assert listed.returncode == 0, listed.stderr
    for name in ("build-vendor", "patch", "doctor"):
        assert name in listed.stdout

    planned = run(str(fresh / "bin/invoke"), "build-vendor", "--plan")
    assert "Traceback" not in planned.stderr + planned.stdout
    assert "No module named" not in planned.stderr + planned.stdout
    assert planned.returncode == 0, planned.stdout + planned.stderr
