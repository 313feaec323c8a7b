"""An interpreter that the engine supports: it asks for Python 3.12, the tests run on older ones too."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def new_enough_python() -> str | None:
    """Give the oldest interpreter at hand that the engine supports, 3.12 or newer."""
    if sys.version_info >= (3, 12):
        return sys.executable
    named = [shutil.which(f"python3.{minor}") for minor in range(12, 16)]
    kept = sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[2-9].*/bin/python3"))
    for candidate in [*named, *map(str, kept)]:
        if candidate is None:
            continue
        asked = subprocess.run(
            [candidate, "-c", "import sys; print(sys.version_info >= (3, 12))"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.stdout.strip() == "True":
            return candidate
    return None


def python_for(tag: str) -> str | None:
    """Give an interpreter of a tag like cp313."""
    minor = tag.removeprefix("cp3")
    if f"cp3{sys.version_info.minor}" == tag:
        return sys.executable
    named = shutil.which(f"python3.{minor}")
    kept = sorted(Path("~/.pyenv/versions").expanduser().glob(f"3.{minor}.*/bin/python3"))
    for candidate in [*map(str, kept), *([named] if named else [])]:
        if subprocess.run([candidate, "-c", ""], check=False, capture_output=True).returncode == 0:
            return candidate
    return None
