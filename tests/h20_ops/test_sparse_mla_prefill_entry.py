"""What the prefill operator refuses before it touches a GPU."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from h20_ops import sparse_mla_prefill
from h20_ops.errors import DeviceError

pytestmark = pytest.mark.torch


def call(**changes: Any) -> None:
    arguments: dict[str, Any] = {
        "q": torch.zeros((3, 64, 512), dtype=torch.bfloat16),
        "kv": torch.zeros((10, 1, 512), dtype=torch.bfloat16),
        "indices": torch.zeros((3, 1, 8), dtype=torch.int32),
        "sm_scale": 0.04,
    }
    arguments.update(changes)
    sparse_mla_prefill(**arguments)


def test_tensors_off_the_gpu_are_refused_and_the_twin_is_named() -> None:
    with pytest.raises(DeviceError, match=r"h20_ops\.torch_ref\.sparse_mla_prefill"):
        call()


@pytest.mark.parametrize(
    "changes,words",
    [
        ({"q": torch.zeros((3, 64, 512))}, "float32"),
        ({"q": torch.zeros((3, 64, 576), dtype=torch.bfloat16)}, "576"),
        ({"kv": torch.zeros((10, 2, 512), dtype=torch.bfloat16)}, "2"),
        ({"indices": torch.zeros((4, 1, 8), dtype=torch.int32)}, "4"),
        ({"indices": torch.zeros((3, 1, 8), dtype=torch.int64)}, "int64"),
        ({"indices": torch.zeros((3, 1, 16), dtype=torch.int32)[..., ::2]}, "indices"),
        ({"d_v": 256}, "256"),
        ({"sm_scale": -0.1}, "-0.1"),
        ({"attn_sink": torch.zeros(63)}, "63"),
        ({"topk_length": torch.zeros(3)}, "topk_length"),
        ({"kv": torch.zeros((10, 1, 513), dtype=torch.bfloat16)[..., :512]}, "513"),
        ({"kv": torch.zeros((10, 1, 520), dtype=torch.bfloat16)[..., 1:513]}, "16-byte"),
        ({"q": torch.zeros((3, 64, 1024), dtype=torch.bfloat16)[..., ::2]}, "contiguous"),
    ],
)
def test_wrong_arguments_are_named_with_their_values(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        call(**changes)


def test_padded_index_rows_and_strided_queries_pass_the_entry_checks() -> None:
    with pytest.raises(DeviceError):
        call(
            q=torch.zeros((3, 72, 512), dtype=torch.bfloat16)[:, :64],
            kv=torch.zeros((10, 1, 576), dtype=torch.bfloat16)[..., :512],
            indices=torch.zeros((3, 1, 12), dtype=torch.int32)[..., :8],
        )


def test_importing_the_operator_needs_no_nvcc_and_no_gpu() -> None:
    code = (
        "import os, sys; os.environ.update(PATH='', CUDA_HOME='/nowhere', CUDA_VISIBLE_DEVICES='')\n"
        "from h20_ops.sparse_mla_prefill import sparse_mla_prefill\n"
        "assert 'torch' not in sys.modules and 'tilelang' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
