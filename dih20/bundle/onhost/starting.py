"""Start engine-check with what is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from dih20.bundle.onhost import facts
from dih20.bundle.onhost.installing import Installed
from dih20.bundle.onhost.layout import Layout
from dih20.bundle.onhost.saying import say


def command(layout: Layout, arguments: Sequence[str]) -> list[str]:
    """Give the command line; the places of the bundle stand where the user names no other."""
    own = {
        "--work": layout.root / "engine-check",
        "--upstream": layout.sources / "deep_gemm",
    }
    given = {word.partition("=")[0] for word in arguments}
    places = [word for name, place in own.items() if name not in given for word in (name, str(place))]  # fmt: skip
    return [sys.executable, "-m", "dih20.engine_check", *arguments, *places]


def engine_check(layout: Layout, installed: Installed, arguments: Sequence[str]) -> NoReturn:
    """Become engine-check, so that a signal reaches it; a host without a Hopper GPU is refused first."""
    facts.require_gpu(installed.facts)
    words = command(layout, arguments)
    say(f"engine-check {' '.join(words[3:])}")
    os.chdir(layout.root)
    os.execve(sys.executable, words, dict(installed.environment))
