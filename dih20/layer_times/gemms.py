"""Compile DeepGEMM's kernels for these layers in several processes: one after the other they take a minute.

python3 -m dih20.layer_times.gemms FIRST STEP      calls every STEP-th shape from FIRST on
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

_DENSE = (  # rows and columns of weights
    (1792, 5120),
    (1280, 5120),
    (512, 5120),
    (36864, 1280),
    (32768, 1280),
    (5120, 8192),
    (4608, 5120),
    (5120, 2304),
    (25600, 6144),
)
_GROUPED = ((4608, 5120), (5120, 2304))
_EXPERTS, _TOPK, _ALIGNMENT = 48, 6, 128
_GROUPS, _GROUP_OUT, _GROUP_IN = 8, 1024, 4096
_MIXES, _STREAMS, _SPLITS = 24, 4 * 5120, 16


def start(rows: Sequence[int], processes: int = 13) -> list[subprocess.Popen[bytes]]:
    """Start the processes; they end by themselves. Give them, to be waited for."""
    return [
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(first), str(processes), *map(str, rows)],
            stdout=subprocess.DEVNULL,
        )
        for first in range(processes)
    ]


def calls(rows: int) -> list[Callable[[], Any]]:
    """Give one call for each kernel that a pass of so many rows needs."""
    found: list[Callable[[], Any]] = [lambda s=shape: _dense(rows, *s) for shape in _DENSE]  # type: ignore[misc]
    found += [lambda s=shape: _grouped(rows, *s) for shape in _GROUPED]  # type: ignore[misc]
    return [*found, lambda: _output(rows), lambda: _mix(rows)]


def _dense(rows: int, n: int, k: int) -> None:
    import deep_gemm  # type: ignore[import-not-found]

    a, b = _scaled(rows, k), _blocks(n, k)
    deep_gemm.fp8_fp4_gemm_nt(a, b, _bf16(rows, n), None, recipe=(1, 128, 128))


def _grouped(rows: int, n: int, k: int) -> None:
    import deep_gemm
    import torch

    from h20_ops.local_buffers.expert import worst_case_rows

    deep_gemm.set_mk_alignment_for_contiguous_layout(_ALIGNMENT)
    count = worst_case_rows(rows, _TOPK, _EXPERTS, _ALIGNMENT)
    ends = torch.zeros(_EXPERTS, dtype=torch.int32, device="cuda")
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
        _scaled(count, k),
        _blocks(_EXPERTS, n, k),
        _bf16(count, n),
        ends,
        recipe_a=(1, 128),
        recipe_b=(128, 128),
        use_psum_layout=True,
    )


def _output(rows: int) -> None:
    import deep_gemm
    import torch

    values, scales = _scaled(rows, _GROUPS * _GROUP_IN)
    a = (
        values.view(rows, _GROUPS, _GROUP_IN),
        scales.unflatten(1, (_GROUPS, _GROUP_IN // 128)),
    )
    d = torch.empty((rows, _GROUPS, _GROUP_OUT), dtype=torch.bfloat16, device="cuda")
    b = _blocks(_GROUPS, _GROUP_OUT, _GROUP_IN)
    deep_gemm.fp8_einsum("bhr,hdr->bhd", a, b, d, recipe=(1, 128, 128))


def _mix(rows: int) -> None:
    import deep_gemm
    import torch

    fn = torch.zeros((_MIXES, _STREAMS), device="cuda")
    out = torch.empty((_SPLITS, rows, _MIXES), device="cuda")
    squares = torch.empty((_SPLITS, rows), device="cuda")
    deep_gemm.tf32_hc_prenorm_gemm(_bf16(rows, _STREAMS), fn, out, squares, _SPLITS)


def _bf16(*shape: int) -> Any:
    import torch

    return torch.zeros(shape, dtype=torch.bfloat16, device="cuda")


def _scaled(rows: int, k: int) -> Any:
    """Activations: e4m3, fp32 scales a 128 columns, columns outermost."""
    import torch

    padded = -(-rows // 4) * 4
    scales = torch.ones((k // 128, padded), device="cuda").t()[:rows]
    return torch.zeros((rows, k), dtype=torch.float8_e4m3fn, device="cuda"), scales


def _blocks(*shape: int) -> Any:
    """Weights: e4m3, fp32 scales a 128x128 block."""
    import torch

    *groups, n, k = shape
    scales = torch.ones((*groups, n // 128, k // 128), device="cuda")
    return torch.zeros(shape, dtype=torch.float8_e4m3fn, device="cuda"), scales


def main(arguments: Sequence[str]) -> int:
    import torch

    first, step, *rows = map(int, arguments)
    for call in [each for count in rows for each in calls(count)][first::step]:
        call()
    torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
