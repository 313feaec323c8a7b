"""Read a checkpoint for the reference engine: the canary's, or any V4.1 folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dih20.errors import EngineStartFailed
from dih20.serve.engines.expert_parallel import ExpertParallelReference, is_held, share
from dih20.serve.engines.interface import ReportProgress
from dih20.serve.engines.lockstep import GlooLockstep
from v41.checkpoint.reading import CheckpointReader
from v41.checkpoint.weights import load_one
from v41.engram_vocab import compressed_ids
from v41.errors import CheckpointError
from v41.model import Reference
from v41.numerics import Mode, Numerics

_REPORTS = 20  # lines while loading


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model ready to run, and what its config.json says about serving it."""

    model: Reference
    end_token_ids: tuple[int, ...]
    longest: int  # tokens of prompt and answer that the checkpoint is made for


def load(
    folder: Path, mode: Mode, device: str, lockstep: GlooLockstep | None, report: ReportProgress
) -> Loaded:
    """Load one rank's tensors: all of them, or with a lockstep this rank's share of the experts."""
    try:
        reader = CheckpointReader(folder)
        weights = _weights(reader, mode, device, lockstep, report)
        return Loaded(
            model=_model(reader, weights, mode, folder, lockstep),
            end_token_ids=_end_tokens(reader.raw_config),
            longest=int(reader.raw_config["text_config"]["max_position_embeddings"]),
        )
    except CheckpointError as fault:
        raise EngineStartFailed(
            found=fault.found, expected=fault.expected, remedy=fault.next_step
        ) from fault
    except KeyError as missing:
        raise EngineStartFailed(
            found=f"{folder / 'config.json'}: no key {missing.args[0]!r}",
            expected="the released config.json",
            remedy="take config.json from the same release as the shards",
        ) from missing


def _weights(
    reader: CheckpointReader,
    mode: Mode,
    device: str,
    lockstep: GlooLockstep | None,
    report: ReportProgress,
) -> dict[str, torch.Tensor]:
    specs = reader.specs
    if lockstep:
        held = share(reader.config.n_routed_experts, lockstep.rank, lockstep.ranks)
        specs = [spec for spec in specs if is_held(spec.name, held)]
    weights, every = {}, max(len(specs) // _REPORTS, 1)
    for number, spec in enumerate(specs):
        if number % every == 0:
            report("loading", f"tensor {number} of {len(specs)}: {spec.name}", number / len(specs))
        weights[spec.name] = load_one(reader, spec, mode).to(device)
    return weights


def _model(
    reader: CheckpointReader,
    weights: dict[str, torch.Tensor],
    mode: Mode,
    folder: Path,
    lockstep: GlooLockstep | None,
) -> Reference:
    compressed = _compressed(folder, reader) if reader.config.engram_layer_ids else None
    numerics = Numerics.of(mode)
    if lockstep is None:
        return Reference(reader.config, weights, numerics=numerics, compressed_ids=compressed)
    model = ExpertParallelReference(
        reader.config, weights, numerics=numerics, compressed_ids=compressed
    )
    model.lockstep = lockstep
    model.held = share(reader.config.n_routed_experts, lockstep.rank, lockstep.ranks)
    return model


def _compressed(folder: Path, reader: CheckpointReader) -> torch.Tensor:
    """Give Engram's token map, int64 (vocab,), from the checkpoint's own tokenizer."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    tokenizer = _read(path, Tokenizer.from_file)
    size = reader.config.vocab_size
    names = [tokenizer.id_to_token(token) for token in range(size)]
    missing = [token for token, name in enumerate(names) if name is None]
    if missing:
        raise EngineStartFailed(
            found=f"{path} has no token {missing[0]}",
            expected=f"all {size} tokens that config.json counts: Engram is keyed by them",
            remedy="take tokenizer.json from the same release as the shards",
        )
    texts = [tokenizer.decode([token], skip_special_tokens=False) for token in range(size)]
    return compressed_ids(texts, names)


def _read(path: Path, reading: Callable[[str], Any]) -> Any:
    try:
        return reading(str(path))
    except Exception as fault:  # the library raises plain Exception for a bad file
        raise EngineStartFailed(
            found=f"{path}: {fault}",
            expected="the checkpoint's tokenizer.json",
            remedy="fetch it from the same release as the shards",
        ) from fault


def _end_tokens(config: dict[str, Any]) -> tuple[int, ...]:
    ends = config["eos_token_id"]
    return tuple(ends) if isinstance(ends, list) else (int(ends),)
