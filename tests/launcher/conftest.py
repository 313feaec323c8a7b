"""A copy of the repository with a lock that holds invoke alone: enough to list tasks, quick to install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dih20.paths import REPOSITORY

Run = Callable[..., subprocess.CompletedProcess[str]]
Lock = Callable[..., None]


def clean_env(**more: str) -> dict[str, str]:
    """The environment of somebody at a shell: nothing of the environment that runs these tests."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DI_")}
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME"):
        kept.pop(name, None)
    return {**kept, **more}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that the launcher and an editable install need, away from this checkout."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in ("inv", "tasks.py", "pyproject.toml", "README.md", "di.lock.yaml"):
        if (REPOSITORY / name).exists():
            shutil.copy2(REPOSITORY / name, copy / name)
    for name in ("dih20", "requirements", "configs", "recipes", "patches"):
        if (REPOSITORY / name).exists():
            shutil.copytree(
                REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
            )
    return copy


@pytest.fixture
def lock_only(checkout: Path) -> Lock:
    """Write a lock that holds some packages of the real one."""

    def write(*packages: str) -> None:
        text = (REPOSITORY / "requirements" / "base.lock").read_text()
        blocks = re.findall(r"^[a-z0-9-]+==.*(?:\n    --hash=.*)*", text, flags=re.MULTILINE)
        kept = [block for block in blocks if block.split("==")[0] in packages]
        assert len(kept) == len(packages), f"base.lock lacks one of {packages}"
        (checkout / "requirements" / "base.lock").write_text("\n".join(kept) + "\n")

    write("invoke")
    return write


@pytest.fixture
def run_clean(tmp_path: Path) -> Run:
    """Run a command as somebody at a shell would, without standard input."""

    def run(
        *command: str, cwd: Path = tmp_path, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd,
            env=clean_env(**(env or {})),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture
def start(checkout: Path, run_clean: Run) -> Run:
    """Run the copy's ./inv from another folder."""

    def run(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return run_clean(str(checkout / "inv"), *args, env=env)

    return run
