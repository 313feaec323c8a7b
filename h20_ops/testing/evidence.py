"""Record that an operator's GPU tests passed, and for exactly which sources.

A GPU is not at hand wherever the tests run. So a GPU run leaves a file that says which tests passed
on which card, with a hash of every source that could change the result; a CPU test compares that
hash with the tree and fails when they part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from h20_ops.errors import EvidenceError

SHARED_SOURCES = (
    "h20_ops/arguments.py",
    "h20_ops/formats/*.py",
    "h20_ops/kv_cache/layouts.py",
    "h20_ops/kv_cache/records.py",
    "h20_ops/jit/*.py",
    "h20_ops/cuda/sm90*.cuh",
    "h20_ops/torch_ref/attention.py",
    "h20_ops/testing/case_data.py",
    "h20_ops/testing/compare.py",
    "h20_ops/testing/tolerances.py",
)
OPERATOR_SOURCES: dict[str, tuple[str, ...]] = {
    "sparse_mla_prefill": (
        "h20_ops/sparse_mla_prefill.py",
        "h20_ops/cuda/sparse_mla_prefill*",
        "h20_ops/torch_ref/sparse_mla_prefill.py",
        "h20_ops/testing/cases_prefill.py",
        "tests/gpu/test_sparse_mla_prefill.py",
    ),
    "sparse_mla_decode": (
        "h20_ops/sparse_mla_decode.py",
        "h20_ops/cuda/sparse_mla_decode*",
        "h20_ops/torch_ref/sparse_mla_decode.py",
        "h20_ops/testing/cases_decode.py",
        "tests/gpu/test_sparse_mla_decode.py",
    ),
    "kv_records": (
        "h20_ops/store_kv.py",
        "h20_ops/load_kv.py",
        "h20_ops/cuda/kv_records*",
        "h20_ops/torch_ref/*_kv.py",
        "h20_ops/kv_cache/identify.py",
        "h20_ops/kv_cache/row_arguments.py",
        "h20_ops/testing/byte_writer.py",
        "h20_ops/testing/cases_decode.py",
        "tests/gpu/test_kv_records.py",
    ),
    "flash_mla": (
        "dropins/flash_mla/flash_mla/*.py",
        "h20_ops/sparse_mla_*.py",
        "h20_ops/cuda/sparse_mla_*",
        "h20_ops/torch_ref/sparse_mla_*.py",
        "h20_ops/testing/cases_*.py",
        "tests/gpu/test_flash_mla.py",
    ),
    "mqa_logits_prefill": (
        "h20_ops/mqa_logits_prefill.py",
        "h20_ops/arguments_index.py",
        "h20_ops/cuda/mqa_logits_prefill*",
        "h20_ops/cuda/fp4_expand.cuh",
        "h20_ops/cuda/fp8_wgmma.cuh",
        "h20_ops/torch_ref/mqa_logits_prefill.py",
        "h20_ops/torch_ref/index_values.py",
        "h20_ops/testing/mqa_logits_prefill*.py",
        "tests/gpu/test_mqa_logits_prefill.py",
    ),
    "mqa_logits_paged": (
        "h20_ops/mqa_logits_paged.py",
        "h20_ops/arguments_index.py",
        "h20_ops/cuda/mqa_logits_paged*",
        "h20_ops/torch_ref/mqa_logits_paged.py",
        "h20_ops/torch_ref/index_values.py",
        "h20_ops/testing/mqa_logits_paged*.py",
        "tests/gpu/test_mqa_logits_paged.py",
    ),
    "topk": (
        "h20_ops/topk.py",
        "h20_ops/arguments_topk.py",
        "h20_ops/cuda/topk*",
        "h20_ops/torch_ref/topk.py",
        "h20_ops/testing/topk_cases.py",
        "tests/gpu/test_topk.py",
    ),
    "deep_select": (
        "dropins/deep_select/deep_select/*.py",
        "h20_ops/topk.py",
        "h20_ops/arguments_topk.py",
        "h20_ops/cuda/topk*",
        "h20_ops/torch_ref/topk.py",
        "h20_ops/testing/topk_cases.py",
        "tests/gpu/test_deep_select.py",
    ),
    "requant": (
        "h20_ops/requant.py",
        "h20_ops/reblock.py",
        "h20_ops/requant_loss.py",
        "h20_ops/requant_tables.py",
        "h20_ops/cuda/requant*",
        "h20_ops/testing/requant_cases.py",
        "tests/gpu/test_requant.py",
    ),
    "vit_attention": (
        "h20_ops/vit_attention.py",
        "h20_ops/arguments_vit.py",
        "h20_ops/torch_ref/vit_attention.py",
        "h20_ops/testing/vit_cases.py",
        "tests/gpu/test_vit_attention.py",
    ),
    "local_buffers": (
        "h20_ops/local_buffers/*.py",
        "tests/gpu/test_local_buffers.py",
    ),
    "sm90_contracts": (
        "h20_ops/sm90_contracts/*.py",
        "tests/gpu/test_sm90_contracts.py",
    ),
}


def operators(root: Path) -> list[str]:
    """Return the operators that have a GPU test file, in order; each of them needs evidence."""
    return sorted(op for op in OPERATOR_SOURCES if gpu_test_path(op, root).is_file())


def gpu_test_path(operator: str, root: Path) -> Path:
    return root / "tests" / "gpu" / f"test_{operator}.py"


def evidence_path(operator: str, root: Path) -> Path:
    return root / "tests" / "gpu" / "evidence" / f"{operator}.json"


def sources_of(operator: str, root: Path) -> dict[str, str]:
    """Return path -> sha256 of every file the operator's results depend on."""
    files: dict[str, str] = {}
    for pattern in OPERATOR_SOURCES[operator]:
        found = [path for path in root.glob(pattern) if path.is_file()]
        if not found:
            raise EvidenceError(
                f"no file matches {pattern}, a source of {operator}",
                f"the files listed for {operator} in h20_ops/testing/evidence.py",
                "restore the file, or correct the list if it was renamed",
            )
        files.update({str(p.relative_to(root)): _sha256(p) for p in found})
    for pattern in SHARED_SOURCES:
        shared = [path for path in root.glob(pattern) if path.is_file()]
        files.update({str(p.relative_to(root)): _sha256(p) for p in shared})
    return dict(sorted(files.items()))


def sources_sha256(files: Mapping[str, str]) -> str:
    """Return one hash over paths and their hashes."""
    lines = "".join(f"{path} {digest}\n" for path, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def write_evidence(
    path: Path, *, operator: str, results: Mapping[str, str], root: Path, facts: Mapping[str, Any]
) -> None:
    """Write what ran and what came out; facts are card, torch, cuda, commit and date."""
    files = sources_of(operator, root)
    record = {
        "op": operator,
        **facts,
        "sources_sha256": sources_sha256(files),
        "sources": files,
        "num_passed": sum(outcome == "passed" for outcome in results.values()),
        "results": dict(sorted(results.items())),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def check_evidence(operator: str, root: Path) -> dict[str, Any]:
    """Return the record of an operator if it is complete, all passed, and is about these sources.

    Raises:
        EvidenceError: missing, incomplete, failed or stale, naming the files that changed.
    """
    again = f"run ./inv gpu-test --only {operator} on the GPU machine and commit the new record"
    path = evidence_path(operator, root)
    if not path.is_file():
        raise EvidenceError(f"{path.name} does not exist", "a record of a GPU run", again)
    record: dict[str, Any] = json.loads(path.read_text())
    wanted = ("op", "card", "torch", "cuda", "commit", "date", "sources_sha256", "results")
    missing = [key for key in wanted if not record.get(key)]
    if missing:
        raise EvidenceError(f"{path.name} lacks {', '.join(missing)}", f"keys {wanted}", again)
    bad = [f"{test}: {out}" for test, out in record["results"].items() if out != "passed"]
    if bad:
        raise EvidenceError(
            f"{path.name}: {len(bad)} of {len(record['results'])} tests did not pass: "
            + "; ".join(bad[:3]),
            "every recorded test passed",
            again,
        )
    now = sources_of(operator, root)
    if sources_sha256(now) != record["sources_sha256"]:
        before: dict[str, str] = record.get("sources", {})
        changed = sorted(p for p in {*now, *before} if now.get(p) != before.get(p))
        raise EvidenceError(
            f"{path.name} is stale: {', '.join(changed)} changed since commit {record['commit']}",
            f"sources_sha256 {record['sources_sha256'][:16]}, as on {record['date']}",
            again,
        )
    return record


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
