"""Stage a: counts for each file from lines that survive a kill, the subset, the known cases."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from dih20.engine_check import results
from dih20.engine_check.options import Options
from dih20.engine_check.pytest_lines import difference
from dih20.engine_check.upstream_tests import (
    TestFile,
    counted,
    judged,
    run_files,
    run_upstream_tests,
)
from tests.engine_check.conftest import HERE

pytestmark = pytest.mark.torch
FILE = TestFile(name="norm.py", path=Path("norm.py"))

SAMPLE = """
import pytest, time, torch

@pytest.mark.parametrize("n", range(8))
def test_sound(n):
    assert n >= 0

def test_bits():
    a = torch.ones(4, dtype=torch.bfloat16)
    b = a.clone()
    b[2] = 1.0078125
    assert torch.equal(a, b)

def test_skipped():
    pytest.skip("not here")

def test_slow():
    time.sleep(float({slow}))
"""


def sample(folder: Path, slow: float = 0.0) -> TestFile:
    path = folder / "sample.py"
    path.write_text(SAMPLE.format(slow=slow))
    return TestFile(name="sample.py", path=path)


def run(file: TestFile, work: Path, take: int = 4, limit: float = 120.0) -> dict[str, Any]:
    return run_files([file], take, 1, limit, work, whole_s=600)[file.name]


def test_a_file_gives_counts_its_subset_and_how_far_tensors_are_apart(tmp_path: Path) -> None:
    row = run(sample(tmp_path), tmp_path)
    assert (row["passed"], row["failed"], row["skipped"]) == (2 + 1, 1, 1)
    assert (row["collected"], row["left_out"]) == (5, 6)
    gap = row["failures"][0]["difference"]
    assert (gap["differ"], gap["largest_steps"], gap["elements"]) == (1, 1, 4)
    assert "sample.py: 1 failed, the first" in judged({"sample.py": row})[0]


def test_a_file_over_its_limit_keeps_what_had_run(tmp_path: Path) -> None:
    row = run(sample(tmp_path, slow=600), tmp_path, take=8, limit=20)
    assert row["cut"] and row["passed"] >= 1
    row["failed"] = 0
    assert judged({"sample.py": row}) == [
        f"sample.py: cut at its limit after {row['passed']} passed"
    ]


def test_a_file_that_cannot_be_collected_is_no_pass(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text("import a_module_that_is_not_there\n")
    row = run(TestFile(name="sample.py", path=path), tmp_path)
    assert judged({"sample.py": row}) == ["sample.py: pytest ended with 2, 0 passed"]


def known_line(relative: float, test: str) -> str:
    return json.dumps({
        "test": test, "outcome": "failed", "seconds": 1.0, "why": "assert False",
        "difference": {"largest_relative": relative, "differ": 3},
    })  # fmt: skip


@pytest.mark.parametrize(
    ("relative", "test", "known"),
    [
        (2.0**-8, "a/fused_transform.py::test_x[return-norm-512-8193]", 1),
        (2.0**-5, "a/fused_transform.py::test_x[return-norm-512-8193]", 0),
        (2.0**-8, "a/fused_transform.py::test_x[return-norm-512-128]", 0),
        (2.0**-8, "a/norm.py::test_x[return-norm-512-8193]", 0),
    ],
)
def test_only_the_known_cases_may_differ_by_one_step(
    tmp_path: Path, relative: float, test: str, known: int
) -> None:
    path = tmp_path / "lines"
    passed = json.dumps({"test": "a", "outcome": "passed", "seconds": 0.1})
    path.write_text(passed + "\n" + known_line(relative, test) + "\n")
    row = counted(path, FILE, 1, False, 3.0)
    assert (row["known"], row["failed"]) == (known, 1 - known)
    assert bool(judged({"x": row})) == (known == 0)


def test_the_difference_of_other_shapes_is_their_shapes() -> None:
    assert difference(torch.zeros(2), torch.zeros(3))["shapes"] == [[2], [3]]


def test_without_upstreams_files_the_stage_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "PYTHONPATH", "")
    options = Options(work=str(tmp_path), tree=str(tmp_path))
    record = run_upstream_tests(options, tmp_path, HERE, lambda line: None)
    assert record["verdict"] == "failed"
    assert "no test file of upstream" in record["reason"]
    assert results.read_json(tmp_path / "stage-a.json") is not None
