"""The JSON index beside the tensor files: what the run was, and a record of every tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from dih20.errors import DumpUnusable
from dih20.parity.model import RunFacts, Shard, Statistics, TensorRecord

FORMAT = 1


def index_path(folder: Path, rank: int) -> Path:
    """Give the path of one rank's index."""
    return folder / f"index.rank-{rank}.json"


def tensor_path(folder: Path, step: int, rank: int) -> Path:
    """Give the path of the tensors of one step and rank."""
    return folder / f"step-{step:04d}.rank-{rank}.safetensors"


def write_index(folder: Path, rank: int, facts: RunFacts, records: list[TensorRecord]) -> None:
    """Write a rank's index; it is written last, so that a dump with one is complete."""
    whole = {"format": FORMAT, "run": _plain(facts), "records": [_plain(r) for r in records]}
    text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    index_path(folder, rank).write_text(text + "\n", encoding="utf-8")


def read_index(path: Path) -> tuple[RunFacts, list[TensorRecord]]:
    """Read a rank's index; anything unexpected in it is an error that names the file."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        if whole["format"] != FORMAT:
            raise DumpUnusable(
                found=f"{path}: dump format {whole['format']}",
                expected=f"format {FORMAT}, the one this version writes",
                remedy="dump the run again with this version",
            )
        facts = _facts(whole["run"])
        return facts, [_record(record) for record in whole["records"]]
    except (OSError, ValueError, KeyError, TypeError) as broken:
        raise DumpUnusable(
            found=f"{path} is not a readable index: {type(broken).__name__}: {broken}",
            expected=f"a dump index of format {FORMAT}, as the capture wrote it",
            remedy="copy the whole dump folder again, or dump the run again",
        ) from broken


def _plain(value: Any) -> dict[str, Any]:
    plain = {}
    for field in fields(value):
        inner = getattr(value, field.name)
        plain[field.name] = _plain(inner) if isinstance(inner, Statistics | Shard) else inner
    return plain


def _facts(plain: Mapping[str, Any]) -> RunFacts:
    values = dict(plain)
    values["tokens"] = tuple(tuple(map(tuple, step)) for step in plain["tokens"])
    values["positions"] = tuple(map(tuple, plain["positions"]))
    return RunFacts(**values)


def _record(plain: Mapping[str, Any]) -> TensorRecord:
    values = dict(plain)
    values["shape"], values["stride"] = tuple(plain["shape"]), tuple(plain["stride"])
    values["statistics"] = Statistics(**plain["statistics"])
    values["shard"] = Shard(**plain["shard"])
    return TensorRecord(**values)
