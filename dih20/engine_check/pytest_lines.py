"""A pytest plugin: one JSON line per test as soon as it has run, so that a limit loses none.

    DIH20_LINES=FILE DIH20_TAKE=8 python -m pytest -p dih20.engine_check.pytest_lines ...

DIH20_TAKE keeps one in so many tests of each function; tests of KNOWN stay all. Where a test says
that two float tensors are not equal, the line has how far apart they are. Times of DeepGEMM's tests
are not taken: their measuring calls become one call of the function.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

# Cases that failed on an H200 before: the norm that they return differs in bits from torch's.
KNOWN = re.compile(r"fused_transform\.py::.*return-norm.*-n8193\b")
_NOW: dict[str, Any] = {}


def pytest_configure(config: Any) -> None:
    import torch

    healthy = torch.equal

    def equal(a: Any, b: Any) -> bool:
        same = bool(healthy(a, b))
        if not same:
            _NOW["difference"] = difference(a, b)
        return same

    torch.equal = equal
    _measure_nothing()


def difference(a: Any, b: Any) -> dict[str, Any]:
    """Give how many elements differ, and by how much; in steps of the type for bf16."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return {"shapes": [list(a.shape), list(b.shape)], "dtypes": [str(a.dtype), str(b.dtype)]}
    x, y = a.detach().float().flatten(), b.detach().float().flatten()
    gap = (x - y).abs()
    unequal = gap.ne(0) | gap.isnan()
    relative = gap / y.abs().clamp_min(1e-30)
    found = {
        "elements": gap.numel(),
        "differ": int(unequal.sum()),
        "largest": float(gap.max()) if gap.numel() else 0.0,
        "largest_relative": float(relative[unequal].max()) if bool(unequal.any()) else 0.0,
        "dtype": str(a.dtype).removeprefix("torch."),
    }
    if found["dtype"] == "bfloat16":
        import torch

        steps = (
            a.detach().contiguous().view(torch.int16).int()
            - b.detach().contiguous().view(torch.int16).int()
        )
        found["largest_steps"] = int(steps.abs().max())
    return found


def _measure_nothing() -> None:
    try:
        testing = importlib.import_module("deep_gemm.testing")
    except ImportError:
        return

    def bench_kineto(fn: Any, kernel_names: Any, *args: Any, **kwargs: Any) -> Any:
        fn()
        return 1e-6 if isinstance(kernel_names, str) else tuple(1e-6 for _ in kernel_names)

    def bench(fn: Any, *args: Any, **kwargs: Any) -> float:
        fn()
        return 1e-6

    for name, value in (("bench_kineto", bench_kineto), ("bench", bench)):
        if hasattr(testing, name):
            setattr(testing, name, value)


@pytest.hookimpl(trylast=True)  # type: ignore[untyped-decorator, unused-ignore]
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Keep some tests of each function, in turn over the files; shorten loops inside them."""
    take = max(int(os.environ.get("DIH20_TAKE", "1")), 1)
    only = json.loads(os.environ.get("DIH20_ONLY", "{}"))
    seen: Counter[str] = Counter()
    kept, dropped = list[Any](), list[Any]()
    for item in items:
        name, file = item.nodeid.split("[")[0], item.path.name
        wanted = not only.get(file) or name.rsplit("::", 1)[-1] in only[file]
        place, seen[name] = seen[name], seen[name] + 1
        keep = wanted and (place % take == 0 or KNOWN.search(item.nodeid))
        (kept if keep else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    items[:] = in_turn(kept)
    for module in {id(item.module): item.module for item in items}.values():
        shorten_loops(module, int(os.environ.get("DIH20_LOOPS", "0")))
    counts = {key: Counter(each.path.name for each in group)
              for key, group in (("collected", kept), ("left_out", dropped))}  # fmt: skip
    _write(counts)


def in_turn(items: list[Any]) -> list[Any]:
    """Take one test of each file after the other."""
    files: dict[str, list[Any]] = {}
    for item in items:
        files.setdefault(item.path.name, []).append(item)
    longest = max((len(group) for group in files.values()), default=0)
    return [g[place] for place in range(longest) for g in files.values() if place < len(g)]


def shorten_loops(module: Any, count: int) -> None:
    """Let each generator of cases that a module took, enumerate_..., give `count` of them."""
    if not count:
        return
    for name, value in list(vars(module).items()):
        if name.startswith("enumerate_") and callable(value):

            def some(*args: Any, _all: Any = value, **kwargs: Any) -> Any:
                found = list(_all(*args, **kwargs))
                step = max(len(found) // count, 1)
                return iter(found[::step][:count])

            setattr(module, name, some)


def pytest_runtest_logstart(nodeid: str, location: Any) -> None:
    _NOW.clear()


def pytest_runtest_logreport(report: Any) -> None:
    if report.when != "call" and report.outcome == "passed":
        return
    line = {
        "test": report.nodeid,
        "outcome": report.outcome,
        "seconds": round(report.duration, 2),
    }
    if report.outcome == "failed":
        line["why"] = str(report.longrepr).strip().splitlines()[-1][:300]
        line |= {key: value for key, value in _NOW.items() if key == "difference"}
    _write(line)


def _write(line: dict[str, Any]) -> None:
    path = os.environ.get("DIH20_LINES")
    if path is None:
        sys.stderr.write("DIH20_LINES is not set\n")
        return
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
