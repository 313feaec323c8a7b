"""A pytest plugin that writes test -> outcome as JSON; anything but a pass counts as not passed.

H20_OPS_OUTCOMES=outcomes.json python3 -m pytest -p h20_ops.testing.outcomes FILE
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

VARIABLE = "H20_OPS_OUTCOMES"
_results: dict[str, str] = {}


def pytest_runtest_logreport(report: Any) -> None:
    test = report.nodeid.split("::", 1)[-1]
    if report.outcome != "passed":  # of set-up, call and tear-down, whichever went wrong
        _results[test] = report.outcome
    elif report.when == "call":
        _results.setdefault(test, "passed")


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _results[f"collection of {report.nodeid}"] = "failed"


def pytest_sessionfinish() -> None:
    Path(os.environ[VARIABLE]).write_text(json.dumps(_results))
