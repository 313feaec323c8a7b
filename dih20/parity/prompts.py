"""The tokens that a dump runs: from a text, from a file of ids, or drawn by a seed."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from dih20.errors import UsageError
from v41.config import ModelConfig


def tokens_for(
    checkpoint: Path, config: ModelConfig, *, prompt: str, tokens: str, length: int, seed: int
) -> torch.Tensor:
    """Give int64 (1, n): `prompt` encoded, the ids in the file `tokens`, or `length` random ids."""
    if prompt:
        from v41.canary.tokenizer import Tokenizer

        ids = Tokenizer.load(checkpoint / "tokenizer.json").encode(prompt)
        return torch.tensor([ids], dtype=torch.int64)
    if tokens:
        try:
            ids = [int(token) for token in json.loads(Path(tokens).read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError) as broken:
            raise UsageError(
                found=f"{tokens}: {broken}",
                expected="a JSON list of token ids",
                remedy="give --tokens such a file, or --prompt a text",
            ) from broken
        if not ids or not 0 <= min(ids) <= max(ids) < config.vocab_size:
            raise UsageError(
                found=f"{tokens}: {len(ids)} ids, some outside 0..{config.vocab_size - 1}",
                expected="ids of this checkpoint's vocabulary",
                remedy="correct the file",
            )
        return torch.tensor([ids], dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, config.vocab_size, (1, length), generator=generator)


def rows_of(length: int, decode: int) -> list[int]:
    """Give the rows of each step: one prefill, then `decode` steps of one row."""
    if not 0 <= decode < length:
        raise UsageError(
            found=f"{decode} decode steps over {length} tokens",
            expected="fewer decode steps than tokens",
            remedy="give --decode a smaller number, or a longer prompt",
        )
    return [length - decode, *[1] * decode]
