"""Modules of the patched tree import by name, on the oldest interpreter at hand that the engine takes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from dih20.console import Console
from dih20.patches.series import Patch
from dih20.paths import REPOSITORY
from tests.patches.edits.interpreters import new_enough_python, python_for
from tests.patches.upstream_tree import lay

LIST = REPOSITORY / "patches/sm90/imports.txt"
_IMPORT = """
import importlib, json, sys
sys.path[:0] = sys.argv[1].split(":")
failed = {}
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except Exception as fault:
        failed[name] = f"{type(fault).__name__}: {fault}"
print(json.dumps(failed))
"""


def listed(prefix: str = "") -> list[str]:
    lines = [line.strip() for line in LIST.read_text().splitlines()]
    names = [line for line in lines if line and not line.startswith("#")]
    if prefix:
        return [n.removeprefix(prefix).strip() for n in names if n.startswith(prefix)]
    return [name for name in names if ":" not in name]


def failures(python: str, path: str, names: list[str]) -> dict[str, str]:
    done = subprocess.run(
        [python, "-c", _IMPORT, path, *names], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_at_least_ten_modules_import_without_any_package(
    series: list[Patch], copy_of: Path
) -> None:
    assert len(listed()) >= 10
    python = new_enough_python()
    if python is None:
        pytest.skip("no Python 3.12 or newer on this machine")
    tree, _ = lay(copy_of, *series)
    tree.write()
    assert failures(python, str(copy_of), listed()) == {}
    (copy_of / "deepinfer/platform.py").write_text("def f(:\n")
    assert list(failures(python, str(copy_of), ["deepinfer.platform"])) == ["deepinfer.platform"]


@pytest.mark.vendor
@pytest.mark.timeout(3600)
def test_modules_that_need_torch_import_too(
    series: list[Patch], copy_of: Path, tmp_path: Path
) -> None:
    """In a fresh environment with the lock's torch: the patched readers and loaders of the checkpoint."""
    from dih20.config import load_mirrors
    from dih20.fetch import cached, fetch_files
    from dih20.lock import Lock

    lock = Lock.load()
    tag = lock.base("stand-in").python_tag
    python = python_for(tag)
    assert python is not None, f"no interpreter for {tag}, for which the lock has torch"
    wheels = lock.torch_wheels(tag)
    fetch_files(Console(as_json=True), wheels, load_mirrors(), what="torch")
    environment = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin/pip"), "install", "-q", "--no-cache-dir"]
    files = [str(cached(wheel)) for wheel in wheels]
    subprocess.run([*pip, "--no-deps", "--no-index", *files], check=True)
    subprocess.run([*pip, "numpy", "safetensors", "psutil", "orjson", "pytest"], check=True)
    tree, _ = lay(copy_of, *series)
    tree.write()
    assert len(listed("torch:")) >= 4
    inside = str(environment / "bin/python")
    failed = failures(inside, str(copy_of), listed("torch:"))
    shutil.rmtree(environment)  # gigabytes, of which pytest would keep three
    assert failed == {}
