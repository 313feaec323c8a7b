"""Write the canary's folder: config, tokenizer, weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from v41.canary.shape import config_json
from v41.canary.tokenizer import tokenizer_config, tokenizer_json
from v41.checkpoint import write_checkpoint

_SHARD_BYTES = 9_000_000


def write_canary(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write everything the engine's loader wants but the vision tensors.

    Args:
        weights: fp32, under their released names.
    """
    write_checkpoint(folder, config_json(), weights, shard_bytes=_SHARD_BYTES)
    _write(folder / "tokenizer.json", tokenizer_json())
    _write(folder / "tokenizer_config.json", tokenizer_config())


def _write(path: Path, value: dict[str, Any]) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=0)
    path.write_text(text + "\n", encoding="utf-8")
