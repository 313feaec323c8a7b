"""The server's wheel carries what it reads, and needs nothing of the rest of the tool."""

from __future__ import annotations

import fnmatch
import subprocess
import sys
import tomllib

from dih20.paths import REPOSITORY

PACKAGE = REPOSITORY / "dih20/serve"


def test_every_data_file_goes_into_the_wheel() -> None:
    project = tomllib.loads((REPOSITORY / "recipes/dih20_serve/pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    data = [
        path
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and "__pycache__" not in path.parts
    ]
    assert len(data) >= 4
    left_out = [p.name for p in data if not any(fnmatch.fnmatch(p.name, each) for each in patterns)]
    assert left_out == []


def test_the_gateway_imports_nothing_else_of_the_tool() -> None:
    code = (
        "import sys, dih20.serve.server, dih20.serve.engines.process\n"
        "print(*sorted(n for n in sys.modules if n.split('.')[0] in ('dih20', 'torch', 'v41', 'yaml')"
        " and not n.startswith('dih20.serve')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["dih20", "dih20.errors"]
