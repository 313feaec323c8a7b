"""Open a checkpoint for the reference: its weights, its token map, its hash."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from dih20.errors import DumpUnusable
from dih20.parity.oracle import Oracle
from v41.checkpoint import CheckpointReader, load_weights
from v41.engram_vocab import compressed_ids
from v41.errors import V41Error
from v41.numerics import Mode

MODES: tuple[Mode, ...] = ("exact", "trained", "sm90")


def load_oracle(folder: Path, mode: str) -> Oracle:
    """Read a checkpoint for one numeric mode."""
    known: dict[str, Mode] = {name: name for name in MODES}
    if mode not in known:
        raise DumpUnusable(
            found=f"numeric mode {mode!r}",
            expected=f"one of {', '.join(MODES)}",
            remedy="give --mode one of these",
        )
    try:
        reader = CheckpointReader(folder)
        return Oracle(
            config=reader.config,
            weights=load_weights(reader, known[mode]),
            compressed_ids=token_map(folder) if reader.config.engram_layer_ids else None,
            mode=known[mode],
            weights_hash=weights_hash(reader),
            checkpoint=folder,
        )
    except V41Error as fault:
        raise DumpUnusable(
            found=fault.found, expected=fault.expected, remedy=fault.next_step
        ) from fault


def weights_hash(reader: CheckpointReader) -> str:
    """Give a sha256 over the stored bytes of the text model, whatever shards they lie in."""
    digest = hashlib.sha256()
    for spec in reader.specs:
        for name in filter(None, (spec.name, spec.scale_name)):
            digest.update(f"{name}\0".encode())
            digest.update(
                memoryview(reader.read(name).contiguous().flatten().view(torch.uint8).numpy())
            )
    return digest.hexdigest()


def token_map(folder: Path) -> torch.Tensor:
    """Give Engram's compressed ids of the tokenizer beside a checkpoint."""
    from v41.canary.tokenizer import Tokenizer

    path = folder / "tokenizer.json"
    if not path.exists():
        raise DumpUnusable(
            found=f"{path} does not exist",
            expected="the tokenizer: the hash of an Engram layer is made of its token texts",
            remedy="copy tokenizer.json of the same release beside config.json",
        )
    tokenizer = Tokenizer.load(path)
    texts = [tokenizer.decode([token]) for token in range(len(tokenizer.names))]
    return compressed_ids(texts, tokenizer.names)
