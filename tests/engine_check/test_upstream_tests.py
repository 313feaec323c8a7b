"""Stage a: counts for each file from lines that survive a kill, the subset, the known cases."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from dih20.engine_check import results
from dih20.engine_check.counting import counted, judged
from dih20.engine_check.options import Options
from dih20.engine_check.pytest_lines import difference
from dih20.engine_check.upstream_tests import (
    TestFile,
    _files,
    _shares,
    not_shipped,
    run_files,
    run_upstream_tests,
)
from tests.engine_check.conftest import HERE

pytestmark = pytest.mark.torch

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


def run(work: Path, *files: TestFile, take: int = 4, limit: float = 120.0) -> dict[str, Any]:
    return run_files(files, take, 1, limit, work)


def test_a_file_gives_counts_its_subset_and_how_far_tensors_are_apart(tmp_path: Path) -> None:
    row = run(tmp_path, sample(tmp_path))["sample.py"]
    assert (row["passed"], row["failed"], row["skipped"]) == (2 + 1, 1, 1)
    assert (row["collected"], row["left_out"]) == (5, 6)
    gap = row["failures"][0]["difference"]
    assert (gap["differ"], gap["largest_steps"], gap["elements"]) == (1, 1, 4)
    assert "sample.py: 1 failed, the first" in judged({"sample.py": row})[0]


def test_files_that_the_limit_cuts_keep_what_each_of_them_had_run(tmp_path: Path) -> None:
    slow = sample(tmp_path, slow=600)
    other = tmp_path / "other.py"
    other.write_text("def test_one():\n    pass\n")
    never = tmp_path / "never.py"
    never.write_text("import time\ndef test_long():\n    time.sleep(600)\n")
    files = [
        TestFile(name="other.py", path=other),
        slow,
        TestFile(name="never.py", path=never),
    ]
    rows = run(tmp_path, *files, take=8, limit=20)
    assert rows["other.py"]["passed"] == 1 and rows["sample.py"]["passed"] >= 1
    assert all(row["cut"] for row in rows.values())
    assert judged(rows) == ["never.py: no test passed, cut at the limit"]


def test_a_file_that_cannot_be_collected_is_no_pass(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text("import a_module_that_is_not_there\n")
    rows = run(tmp_path, TestFile(name="sample.py", path=path))
    assert judged(rows) == ["sample.py: no test passed, pytest ended with 2"]


def test_only_named_tests_run_and_loops_inside_them_are_shortened(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "cases_of_ours.py").write_text("def enumerate_cases():\n    yield from range(40)\n")
    path = folder / "test_x.py"
    path.write_text(
        "from cases_of_ours import enumerate_cases\n"
        "def test_gemm():\n    assert list(enumerate_cases()) == [0, 10, 20, 30]\n"
        "def test_other():\n    assert False\n"
    )
    rows = run(tmp_path, TestFile(name="test_x.py", path=path, only=("test_gemm",), loops=4))
    assert rows["test_x.py"]["passed"] == 1 and rows["test_x.py"]["left_out"] == 1
    assert judged(rows) == []


CRASHING = """
import os

def test_one():
    pass

def test_two():
    os._exit({code})

def test_three():
    pass
"""


@pytest.mark.parametrize("code", [0, 3, 139])
def test_a_process_that_ends_between_two_tests_is_no_pass(tmp_path: Path, code: int) -> None:
    path = tmp_path / "sample.py"
    path.write_text(CRASHING.format(code=code))
    row = run(tmp_path, TestFile(name="sample.py", path=path), take=1)["sample.py"]
    assert (row["passed"], row["collected"], row["cut"]) == (1, 3, False)
    assert judged({"x": row}) == [f"x: 1 of 3 tests ran, pytest ended with {code}"]


def test_an_exit_code_that_tells_of_no_test_is_a_reason() -> None:
    lines: list[dict[str, Any]] = [
        {"collected": {"a.py": 1}, "left_out": {}},
        {"test": "a.py::a", "outcome": "passed", "seconds": 0.1},
    ]
    assert judged({"x": counted(lines, "a.py", 3, False)}) == ["x: pytest ended with 3"]
    assert judged({"x": counted(lines, "a.py", 1, False)}) == []
    assert judged({"x": counted(lines, "a.py", -9, True)}) == []


@pytest.mark.parametrize(
    ("loops", "count", "shares"),
    [
        ((0, 0, 0, 0), 3, [[0, 3], [1], [2]]),
        ((0, 0, 0, 4, 4), 3, [[0, 1, 2], [3], [4]]),
        ((0, 0, 4), 3, [[0], [1], [2]]),
        ((4, 4, 4, 0, 4), 3, [[3], [0], [1], [2], [4]]),
    ],
)
def test_each_file_of_one_long_function_has_a_process_of_its_own(
    loops: tuple[int, ...], count: int, shares: list[list[int]]
) -> None:
    files = [
        TestFile(name=f"{number}", path=Path("x"), loops=each) for number, each in enumerate(loops)
    ]
    found = [[int(file.name) for file in share] for share in _shares(files, count)]
    assert found == shares


def test_no_more_processes_run_at_once_than_asked_for_and_one_that_never_began_was_cut(
    tmp_path: Path,
) -> None:
    files = []
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("import time\ndef test_long():\n    time.sleep(600)\n")
        files.append(TestFile(name=name, path=tmp_path / name, loops=4))
    rows = run(tmp_path, *files, limit=0.5)
    assert not (tmp_path / "upstream" / "tests-1.log").exists()
    assert [rows[name]["cut"] for name in ("a.py", "b.py")] == [True, True]


def test_a_part_of_the_files_is_no_pass(tmp_path: Path) -> None:
    folder = tmp_path / "deepinfer/model_executor/layers/tilelang_ops"
    folder.mkdir(parents=True)
    for name in ("norm", "gather"):
        (folder / f"{name}.py").write_text("def test_x():\n    pass\n")
    for only, verdict in (("norm", "not run"), ("", "passed")):
        options = Options(work=str(tmp_path), tree=str(tmp_path), only=only)
        record = run_upstream_tests(options, tmp_path, HERE, lambda line: None)
        assert (record["verdict"], record["numbers"]["only"]) == (verdict, only)


def known_line(relative: float, test: str) -> dict[str, Any]:
    return {
        "test": test,
        "outcome": "failed",
        "seconds": 1.0,
        "why": "assert False",
        "difference": {"largest_relative": relative, "differ": 3},
    }


@pytest.mark.parametrize(
    ("relative", "test", "known"),
    [
        (2.0**-8, "a/fused_transform.py::test_x[e4m3-return-norm-h1-d512-n8193]", 1),
        (2.0**-5, "a/fused_transform.py::test_x[e4m3-return-norm-h1-d512-n8193]", 0),
        (2.0**-8, "a/fused_transform.py::test_x[e4m3-return-norm-h1-d512-n128]", 0),
    ],
)
def test_only_the_known_cases_may_differ_by_one_step(
    relative: float, test: str, known: int
) -> None:
    passed = {"test": "a/fused_transform.py::a", "outcome": "passed", "seconds": 0.1}
    row = counted([passed, known_line(relative, test)], "fused_transform.py", 1, False)
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


def test_files_whose_helpers_upstream_does_not_ship_are_named_and_not_run(tmp_path: Path) -> None:
    for name in ("test_bf16.py", "test_hyperconnection.py"):
        (tmp_path / name).write_text("def test_x():\n    pass\n")
    options = Options(upstream=str(tmp_path), tree=str(tmp_path / "none"))
    assert list(not_shipped(options)) == ["test_bf16.py"]
    assert [file.name for file in _files(options)] == ["test_hyperconnection.py"]
    (tmp_path / "generators.py").write_text("")
    assert not_shipped(options) == {}


def test_what_upstream_does_not_ship_is_stood_in_for_and_refuses_to_be_called() -> None:
    from dih20.engine_check.not_shipped import utils

    with pytest.raises(AssertionError, match="not in the source distribution"):
        utils.assert_direct_output_matches_fp32_accumulation(1, 2)
