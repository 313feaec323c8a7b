"""`inv test` and `inv lint`: what CI runs, on any machine."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    help={
        "vendor": "also the heavy real builds (mark vendor)",
        "only": "a pytest expression, as for pytest -k",
        "path": "test files or folders, separated by commas",
        "marks": "only tests with one of these marks: docker, ssh, nvcc, torch",
        "without": "leave out tests with these marks, and do not set up what they need",
    }
)
def test(
    run: Run,
    vendor: bool = False,
    only: str = "",
    path: str = "",
    marks: str = "",
    without: str = "",
) -> dict[str, Any]:
    """The tests; sets up what they need on this machine first."""
    from dih20.dev.selection import selection
    from dih20.dev.testing import run_tests

    wanted = selection(vendor=vendor, only=only, path=path, marks=marks, without=without)
    return run_tests(run.ui, wanted)


@task()
def lint(run: Run) -> dict[str, Any]:
    """Lint and type-check: ruff format, ruff, mypy strict."""
    from dih20.dev.testing import run_linters

    return run_linters(run.ui)
