"""Every module of the package can be the first one that is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dih20.paths import REPOSITORY

pytestmark = pytest.mark.torch
FIRST = (
    "report",
    "table",
    "evidence",
    "output",
    "command",
    "oracle",
    "compare.replay",
    "diagnosis",
)


def test_each_module_imports_alone() -> None:
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    for loaded in [m for m in sys.modules if m.startswith('dih20.parity')]:\n"
        "        del sys.modules[loaded]\n"
        "    importlib.import_module('dih20.parity.' + name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *FIRST],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
