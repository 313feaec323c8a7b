"""Start engine-check with what is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dih20.bundle.onhost import facts
from dih20.bundle.onhost.installing import Installed
from dih20.bundle.onhost.layout import Layout
from dih20.bundle.onhost.saying import say

_PATHS = ("--work", "--prepared", "--checkpoint", "--tree", "--upstream")


def command(layout: Layout, arguments: Sequence[str]) -> list[str]:
    """Give the command line; the places of the bundle stand where the user names no other.

    Paths are taken from the user's folder: the check starts in another.
    """
    own = {
        "--work": layout.root / "engine-check",
        "--upstream": layout.sources / "deep_gemm",
    }
    arguments = _absolute(arguments)
    given = {word.partition("=")[0] for word in arguments}
    places = [word for name, place in own.items() if name not in given for word in (name, str(place))]  # fmt: skip
    return [sys.executable, "-m", "dih20.engine_check", *arguments, *places]


def _absolute(arguments: Sequence[str]) -> list[str]:
    """Give the arguments with every path absolute, in both forms: --work DIR and --work=DIR."""
    found: list[str] = []
    for word in arguments:
        name, equals, value = word.partition("=")
        if name in _PATHS and equals:
            word = f"{name}={_path(value)}"
        elif found and found[-1] in _PATHS:
            word = _path(word)
        found.append(word)
    return found


def _path(text: str) -> str:
    return str(Path(text).expanduser().resolve())


def engine_check(layout: Layout, installed: Installed, arguments: Sequence[str]) -> NoReturn:
    """Become engine-check, so that a signal reaches it; a host without a Hopper GPU is refused first."""
    facts.require_gpu(installed.facts)
    words = command(layout, arguments)
    say(f"engine-check {' '.join(words[3:])}")
    environment = dict(installed.environment)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # run.sh's, for the bundle's own folder
    os.chdir(layout.root)
    os.execve(sys.executable, words, environment)
