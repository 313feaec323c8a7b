"""The GPU runner records every outcome, on tests that need no GPU, in a tree of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from h20_ops.errors import EvidenceError
from h20_ops.testing import run_gpu_tests
from h20_ops.testing.evidence import OPERATOR_SOURCES, check_evidence, evidence_path

pytestmark = pytest.mark.torch

OPERATOR = "sparse_mla_decode"
PASSING = """
import pytest
pytestmark = pytest.mark.gpu

@pytest.mark.parametrize("x", [1, 2])
def test_a(x):
    assert x
"""
FAILING = PASSING + "\n\ndef test_b():\n    assert 1 == 2\n"
SKIPPING = PASSING + "\n\ndef test_c():\n    pytest.skip('no reason')\n"
BROKEN_TEARDOWN = (
    PASSING
    + "\n\n@pytest.fixture\ndef late():\n    yield\n    raise RuntimeError('late')\n"
    + "\n\ndef test_d(late):\n    pass\n"
)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for pattern in OPERATOR_SOURCES[OPERATOR]:
        path = tmp_path / pattern.replace("*", ".cu")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# a source")
    monkeypatch.setattr(run_gpu_tests, "require_sm90", lambda: "NVIDIA H200")
    return tmp_path


def run(root: Path, content: str, select: str = "") -> bool:
    (root / "tests" / "gpu" / f"test_{OPERATOR}.py").write_text(content)
    return run_gpu_tests.run_operator(
        OPERATOR, select=select, commit="abc", target=evidence_path(OPERATOR, root), root=root
    )


def outcomes(root: Path) -> dict[str, str]:
    record: dict[str, dict[str, str]] = json.loads(evidence_path(OPERATOR, root).read_text())
    return record["results"]


def test_passing_tests_give_evidence_that_is_accepted(tree: Path) -> None:
    assert run(tree, PASSING)
    assert outcomes(tree) == {"test_a[1]": "passed", "test_a[2]": "passed"}
    checked = check_evidence(OPERATOR, tree)
    assert (checked["card"], checked["commit"]) == ("NVIDIA H200", "abc")


@pytest.mark.parametrize(
    ("content", "test", "outcome"),
    [
        (FAILING, "test_b", "failed"),
        (SKIPPING, "test_c", "skipped"),
        (BROKEN_TEARDOWN, "test_d", "failed"),
    ],
)
def test_anything_but_a_pass_is_recorded_and_refused(
    tree: Path, content: str, test: str, outcome: str
) -> None:
    assert not run(tree, content)
    assert outcomes(tree)[test] == outcome
    with pytest.raises(EvidenceError, match=f"did not pass: {test}: {outcome}"):
        check_evidence(OPERATOR, tree)


def test_a_file_that_cannot_be_collected_is_not_a_pass(tree: Path) -> None:
    assert not run(tree, "import no_such_module")
    with pytest.raises(EvidenceError, match="did not pass: collection of"):
        check_evidence(OPERATOR, tree)


def test_a_process_that_dies_is_not_a_pass(tree: Path) -> None:
    assert not run(tree, PASSING + "\n\ndef test_e():\n    import os\n    os._exit(0)\n")
    assert list(outcomes(tree).values()) == ["failed"]


def test_a_selection_is_run_but_not_recorded(tree: Path) -> None:
    assert run(tree, PASSING, select="test_a and 1")
    assert not evidence_path(OPERATOR, tree).exists()


def test_a_missing_test_file_is_an_error(tree: Path) -> None:
    (tree / "tests" / "gpu" / f"test_{OPERATOR}.py").unlink()
    target = evidence_path(OPERATOR, tree)
    with pytest.raises(EvidenceError, match=r"test_sparse_mla_decode\.py does not exist"):
        run_gpu_tests.run_operator(OPERATOR, select="", commit="c", target=target, root=tree)
