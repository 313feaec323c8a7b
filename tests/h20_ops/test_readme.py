"""The guide's calls run as they stand, on small tensors and with the twins behind them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from h20_ops import torch_ref
from h20_ops.kv_cache import V41_FP4, V41_FP8
from h20_ops.testing.cases_decode import empty_cache

pytestmark = pytest.mark.torch

README = (Path(__file__).resolve().parents[2] / "h20_ops" / "README.md").read_text()


def code_under(heading: str) -> str:
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    return "\n".join(line[4:] for line in re.findall(r"^    .*$", section, re.M))


def test_the_prefill_call_runs() -> None:
    code = (
        code_under("Prefill")
        .replace('"cuda"', '"cpu"')
        .replace("from h20_ops", "from h20_ops.torch_ref")
    )
    small = code.replace("4096", "3").replace("8192", "20").replace("640", "16")
    names: dict[str, Any] = {}
    exec(small, names)
    assert names["out"].shape == (3, 64, 512) and names["lse"].shape == (3, 64)


def test_the_decode_call_runs() -> None:
    code = code_under("Decode").replace("from h20_ops import", "from h20_ops.torch_ref import")
    names: dict[str, Any] = {
        "q": torch.zeros((2, 1, 64, 512), dtype=torch.bfloat16),
        "sink": torch.zeros(64),
        "window": empty_cache(2, 134, V41_FP8).zero_(),
        "compressed": empty_cache(2, 64, V41_FP4).zero_(),
        "window_slots": torch.zeros((2, 1, 8), dtype=torch.int32),
        "compressed_slots": torch.zeros((2, 1, 16), dtype=torch.int32),
    }
    exec(code, names)
    assert names["out"].shape == (2, 1, 64, 512) and names["lse"].shape == (2, 64, 1)


def test_the_indexer_calls_run() -> None:
    names: dict[str, Any] = {
        "q": torch.zeros((2, 32, 64), dtype=torch.int8),
        "q_sf": torch.full((2, 32), 0x7F7F7F7F, dtype=torch.int32),
        "index_cache": torch.zeros((4, 64, 1, 68), dtype=torch.uint8),
        "weights": torch.ones((2, 32), dtype=torch.bfloat16),
        "klen": torch.tensor([70, 3], dtype=torch.int32),
        "block_tables": torch.tensor([[1, 3], [2, 0]], dtype=torch.int32),
        "expert": torch.zeros((128, 64), dtype=torch.int8),
        "expert_exponents": torch.full((128, 4), 127, dtype=torch.uint8),
    }
    exec(code_under("Indexer, top-k, weights, one GPU"), names)
    assert names["chosen"][1].tolist() == [0, 1, 2] + [-1] * 509
    assert names["values"].shape == (128, 128) and names["scales"].shape == (1, 1)


def test_the_guide_names_things_that_exist() -> None:
    for path in re.findall(r"`((?:dropins|h20_ops|tests|bench)/[\w/.]+)`", README):
        assert (Path(__file__).resolve().parents[2] / path).exists(), path
    for module in set(re.findall(r"`(h20_ops(?:\.\w+)+)`", README)):
        __import__(module)
    assert torch_ref.sparse_mla_decode is not None
