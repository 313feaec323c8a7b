"""A pytest plugin for `inv test --without torch`: test modules that cannot be read without torch are left out.

Each is named at the end of the run, so that a smaller run never looks like a whole one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

_LEFT_OUT: list[str] = []
_MISSING = "No module named 'torch'"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed and _MISSING in str(report.longrepr):
        report.outcome, report.longrepr, report.result = "passed", None, []
        _LEFT_OUT.append(collector.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _LEFT_OUT:
        terminalreporter.write_sep("-", f"{len(_LEFT_OUT)} modules left out: they import torch")
        for name in _LEFT_OUT:
            terminalreporter.write_line(name)
