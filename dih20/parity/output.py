"""Write what a comparison found: one JSON line per tensor, the verdict, and a folder to reproduce it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from dih20.parity.dump import DumpReader
from dih20.parity.evidence import Evidence
from dih20.parity.model import Comparison, Finding, as_plain
from dih20.parity.oracle import Oracle
from dih20.parity.sites import inputs_of
from dih20.parity.tensor_file import TensorFileWriter

_REPRO = '''"""Look at the first wrong tensor again; needs torch and safetensors, nothing else."""

import json
import pathlib

from safetensors.torch import load_file

here = pathlib.Path(__file__).parent
finding = json.loads((here / "finding.json").read_text())
tensors = load_file(here / "tensors.safetensors")
print(finding["site"], finding["phase"], "step", finding["step"], "-", finding["remark"])
want = tensors.get("expected", tensors["a"]).double()
got = tensors["b"].double()
gap = (got - want).abs().flatten()
at, worst = int(gap.argmax()), float(gap.max())
energy = float((want * want).sum() + (got * got).sum())
print("normalised difference", float((gap * gap).sum()) / energy if energy else 0.0)
print("largest at flat index", at, "want", float(want.flatten()[at]), "got", float(got.flatten()[at]))
for name, tensor in tensors.items():
    print(f"  {name:50s} {tuple(tensor.shape)} {tensor.dtype}")
raise SystemExit(worst > 0)
'''


def write_outcome(
    folder: Path, comparison: Comparison, a: Path, b: Path, oracle: Oracle | None
) -> dict[str, str]:
    """Write findings.jsonl, verdict.json and, for a divergence, repro/; give their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    findings = folder / "findings.jsonl"
    with findings.open("w", encoding="utf-8") as file:
        for finding in comparison.findings:
            file.write(_json(as_plain(finding)) + "\n")
    verdict = folder / "verdict.json"
    whole = as_plain(comparison)
    del whole["findings"]
    verdict.write_text(_json(whole) + "\n", encoding="utf-8")
    paths = {"findings": str(findings), "verdict": str(verdict)}
    first = comparison.verdict.first
    if first is not None and _stored(first, a, b):
        evidence = Evidence(
            finding=first, dump_a=DumpReader(a), dump_b=DumpReader(b), oracle=oracle
        )
        paths["repro"] = str(_write_repro(folder / "repro", evidence))
    return paths


def _stored(finding: Finding, *folders: Path) -> bool:
    return all(DumpReader(folder).is_stored(finding.step, finding.site) for folder in folders)


def _write_repro(folder: Path, evidence: Evidence) -> Path:
    """Write both tensors, what was expected, and the site's inputs in B."""
    folder.mkdir(exist_ok=True)
    finding = evidence.finding
    named: dict[str, torch.Tensor | None] = {"a": evidence.a(), "b": evidence.b()}
    if evidence.oracle is not None:
        named["expected"] = evidence.forced()
    named |= {
        f"input.{name}": evidence.b(name) for name in inputs_of(finding.site, evidence.config)
    }
    with TensorFileWriter(folder / "tensors.safetensors") as file:
        for name, tensor in named.items():
            if tensor is not None:
                file.add(name, tensor)
    plain = {**as_plain(finding), "run": as_plain(evidence.dump_b.facts)}
    (folder / "finding.json").write_text(_json(plain) + "\n", encoding="utf-8")
    (folder / "repro.py").write_text(_REPRO, encoding="utf-8")
    return folder


def _json(value: Any) -> str:
    """JSON has no NaN: write it as a word."""
    return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
