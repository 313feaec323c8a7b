"""Single functions of the patched release, run on a CPU: their text, with stand-ins for what they call.

A stand-in for DeepGEMM does the arithmetic in fp64 from the very tensors it is given, and keeps the
keywords it was called with. What h20_ops has is the real thing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dih20.patches.edits.symbols import parse


def function(root: Path, file: str, symbol: str, **names: Any) -> Callable[..., Any]:
    """Give one function or method of a tree, with these global names and no others."""
    module = parse((root / file).read_text())
    (found,) = module.symbols[symbol]
    text = "\n".join(module.lines[found.first : found.last])
    code = "from __future__ import annotations\n" + textwrap.dedent(text)
    exec(compile(code, file, "exec"), names)
    made: Callable[..., Any] = names[symbol.rsplit(".", 1)[-1]]
    return made


def platform(*, is_sm90: bool = True) -> SimpleNamespace:
    import torch

    return SimpleNamespace(
        is_sm90=is_sm90,
        is_gpu=True,
        is_npu=False,
        fp8_sf_type=torch.int32,
        gemm_sf_type=torch.float32 if is_sm90 else torch.int32,
    )


def dequantised(values: Any, scales: Any, block: tuple[int, int]) -> Any:
    """Give e4m3 (..., n, k) times its scales, in fp64."""
    rows = scales.double().repeat_interleave(block[0], dim=-2)[..., : values.shape[-2], :]
    return values.double() * rows.repeat_interleave(block[1], dim=-1)[..., : values.shape[-1]]


def cast_rows(x: Any, **keywords: Any) -> tuple[Any, Any]:
    """Cast bf16 (rows, k) to e4m3 with power-of-two scales, column-major as the GEMM wants them."""
    import torch

    width = keywords["num_per_channels"]
    assert keywords == {
        "fmt": "e4m3",
        "num_per_channels": 128,
        "round_sf": True,
        "use_packed_ue8m0": False,
        "use_tma_aligned_col_major_sf": True,
    }
    groups = x.double().unflatten(-1, (-1, width))
    exact = groups.abs().amax(-1).clamp_min(1e-4) / 448
    scale = torch.exp2(torch.ceil(torch.log2(exact)))
    values = (groups / scale.unsqueeze(-1)).flatten(-2).to(torch.float8_e4m3fn)
    rows = x.shape[0]
    storage = torch.zeros((scale.shape[1], (rows + 3) // 4 * 4), dtype=torch.float32)
    column_major = storage.T[:rows]
    column_major.copy_(scale.float())
    return values, column_major


def with_scale(values: Any, scales: Any) -> Any:
    """Give a parameter that carries its scales, as the engine's weights do."""
    import torch

    parameter = torch.nn.Parameter(values, requires_grad=False)
    parameter.sf = scales
    return parameter


@dataclass
class DeepGemm:
    """The three products of the patched engine, exact."""

    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def fp8_fp4_gemm_nt(self, a: Any, b: Any, d: Any, c: Any, **keywords: Any) -> None:
        self.calls.append(("gemm", keywords))
        d.copy_(dequantised(a[0], a[1], (1, 128)) @ dequantised(b[0], b[1], (128, 128)).T)

    def m_grouped_fp8_fp4_gemm_nt_contiguous(
        self, a: Any, b: Any, d: Any, ends: Any, **keywords: Any
    ) -> None:
        self.calls.append(("grouped", keywords))
        rows, start = dequantised(a[0], a[1], (1, 128)), 0
        for expert, end in enumerate(ends.tolist()):
            weight = dequantised(b[0][expert], b[1][expert], (128, 128))
            d[start:end].copy_(rows[start:end] @ weight.T)
            start = (end + 127) // 128 * 128

    def fp8_einsum(self, expression: str, a: Any, b: Any, d: Any, **keywords: Any) -> None:
        import torch

        self.calls.append((expression, keywords))
        left = dequantised(a[0], a[1], (1, 128))
        d.copy_(torch.einsum(expression, left, dequantised(b[0], b[1], (128, 128))))
