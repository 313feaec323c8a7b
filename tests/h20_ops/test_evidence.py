"""Evidence of GPU runs belongs to exactly the sources it was taken from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from h20_ops.errors import DeviceError, EvidenceError
from h20_ops.jit import CudaSource
from h20_ops.testing.evidence import (
    OPERATOR_SOURCES,
    check_evidence,
    evidence_path,
    operators,
    sources_of,
    write_evidence,
)

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = "sparse_mla_decode"
FACTS = {
    "card": "NVIDIA H200",
    "torch": "2.11.0",
    "cuda": "13.0",
    "commit": "0123abcd",
    "date": "2026-11-29T16:00:00Z",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree with one file per source pattern and passing evidence about it."""
    for pattern in OPERATOR_SOURCES[OPERATOR]:
        path = tmp_path / pattern.replace("*", ".cu")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pattern)
    shared = tmp_path / "h20_ops" / "formats" / "e4m3.py"
    shared.parent.mkdir(parents=True)
    shared.write_text("shared")
    record(tmp_path, {"test_a": "passed", "test_b[1]": "passed"})
    return tmp_path


def record(root: Path, results: dict[str, str]) -> None:
    path = evidence_path(OPERATOR, root)
    write_evidence(path, operator=OPERATOR, results=results, root=root, facts=FACTS)


def test_fresh_evidence_is_accepted(tree: Path) -> None:
    checked = check_evidence(OPERATOR, tree)
    assert checked["card"] == "NVIDIA H200" and checked["num_passed"] == 2


@pytest.mark.parametrize("changed", ["h20_ops/sparse_mla_decode.py", "h20_ops/formats/e4m3.py"])
def test_a_changed_source_makes_it_stale_and_is_named(tree: Path, changed: str) -> None:
    (tree / changed).write_text("changed")
    with pytest.raises(EvidenceError, match=rf"is stale: {changed} changed since commit 0123"):
        check_evidence(OPERATOR, tree)


def test_a_new_or_removed_source_makes_it_stale(tree: Path) -> None:
    extra = tree / "h20_ops" / "cuda" / "sparse_mla_decode_split.cuh"
    extra.write_text("new")
    with pytest.raises(EvidenceError, match=r"sparse_mla_decode_split\.cuh changed"):
        check_evidence(OPERATOR, tree)
    extra.unlink()
    (tree / "h20_ops" / "sparse_mla_decode.py").unlink()
    with pytest.raises(EvidenceError, match=r"no file matches h20_ops/sparse_mla_decode\.py"):
        check_evidence(OPERATOR, tree)


@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_a_test_that_did_not_pass_is_named(tree: Path, outcome: str) -> None:
    record(tree, {"test_a": "passed", "test_b": outcome})
    with pytest.raises(EvidenceError, match=rf"1 of 2 tests did not pass: test_b: {outcome}"):
        check_evidence(OPERATOR, tree)


def test_missing_and_incomplete_evidence_is_told_apart(tree: Path) -> None:
    path = evidence_path(OPERATOR, tree)
    content = json.loads(path.read_text())
    del content["card"]
    path.write_text(json.dumps(content))
    with pytest.raises(EvidenceError, match="lacks card"):
        check_evidence(OPERATOR, tree)
    record(tree, {})
    with pytest.raises(EvidenceError, match="lacks results"):
        check_evidence(OPERATOR, tree)
    path.unlink()
    with pytest.raises(EvidenceError, match=r"sparse_mla_decode\.json does not exist"):
        check_evidence(OPERATOR, tree)


@pytest.mark.parametrize("operator", operators(ROOT))
def test_every_operator_has_evidence_about_the_committed_sources(operator: str) -> None:
    checked = check_evidence(operator, ROOT)
    assert checked["num_passed"] == len(checked["results"])


def test_every_gpu_test_file_belongs_to_an_operator() -> None:
    files = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert files == set(operators(ROOT))


def test_evidence_of_no_operator_is_left_nowhere() -> None:
    left = {path.stem for path in (ROOT / "tests" / "gpu" / "evidence").glob("*.json")}
    assert left <= set(operators(ROOT))


def test_an_operator_with_a_gpu_test_has_its_sources_listed() -> None:
    for operator in operators(ROOT):
        assert f"tests/gpu/test_{operator}.py" in sources_of(operator, ROOT)


@pytest.mark.parametrize("operator", operators(ROOT))
def test_every_header_that_a_kernel_includes_is_one_of_its_sources(operator: str) -> None:
    listed = sources_of(operator, ROOT)
    for path in (ROOT / name for name in listed if name.endswith(".cu")):
        reached = CudaSource(operator, path).files()
        assert {f"h20_ops/cuda/{name}" for name in reached} <= set(listed)


def test_an_operator_with_a_test_and_no_record_is_refused(tree: Path) -> None:
    assert operators(tree) == [OPERATOR]
    (tree / "tests" / "gpu" / "test_topk.py").write_text("")
    assert operators(tree) == [OPERATOR, "topk"]
    with pytest.raises(EvidenceError, match=r"topk\.json does not exist"):
        check_evidence("topk", tree)


@pytest.mark.parametrize("runner", ["run_gpu_tests", "run_gpu_bench"])
def test_without_a_gpu_the_runners_say_so_and_fail(
    runner: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = __import__(f"h20_ops.testing.{runner}", fromlist=["main"])

    def no_card() -> str:
        raise DeviceError("no CUDA device is visible to torch", "an SM90 GPU", "go there")

    monkeypatch.setattr(module, "require_sm90", no_card)
    main: Callable[[list[str]], int] = module.main
    assert main([]) == 2
    assert "found: no CUDA device" in capsys.readouterr().err
