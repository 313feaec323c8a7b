"""FP8 matrix products of DeepGEMM's SM90 kernels: (1, 128, 128) scales, bf16 results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from h20_ops.sm90_contracts.refusal import (
    deep_gemm_on,
    refuse,
    want_dtype,
    want_rows,
    want_shape,
)
from h20_ops.sm90_contracts.scales import (
    blocks,
    check_gemm_scale,
    want_activation_scale,
    want_fp32,
)

if TYPE_CHECKING:
    import torch

    Scaled = tuple[torch.Tensor, torch.Tensor]

RECIPE = (1, 128, 128)
MASKED_ROWS = 128


def fp8_gemm_nt(
    a: Scaled,
    b: Scaled,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    recipe: tuple[int, int, int] = RECIPE,
) -> None:
    """Write a @ b^T into d.

    Args:
        a: e4m3 (m, k) and its fp32 scales (m, ceil(k / 128)).
        b: e4m3 (n, k) and its fp32 scales (ceil(n / 128), ceil(k / 128)), contiguous.
        d: bf16 (m, n). m may be 0.
        c: None; the kernel of this recipe adds nothing.
        recipe: (1, 128, 128). (1, 1, 128) is another kernel, which wants c and an fp32 d.
    Raises:
        UnsupportedError, DeviceError, DependencyError.
    """
    call = "fp8_gemm_nt"
    _want_recipe(call, recipe)
    m, k = _want_operand(call, "a", a[0])
    n = _want_same_k(call, b[0], k)
    want_activation_scale(call, "a[1]", a[1], m, k)
    check_gemm_scale(f"b[1] of {call}", b[1], rows=n, columns=k)
    _want_result(call, d, (m, n))
    if c is not None:
        refuse(call, "c", f"a tensor {tuple(c.shape)}", "None", "add it to d afterwards")
    if m and n:
        deep_gemm_on(call, d).fp8_fp4_gemm_nt(a, b, d, None, recipe=recipe)


def m_grouped_fp8_gemm_nt_contiguous(
    a: Scaled,
    b: Scaled,
    d: torch.Tensor,
    group_ends: torch.Tensor,
    *,
    expected_m: int | None = None,
) -> None:
    """Write each group of rows times its expert's weight; groups start at multiples of 128.

    Args:
        a: e4m3 (rows, k) and its fp32 scales (rows, ceil(k / 128)).
        b: e4m3 (experts, n, k) and its fp32 scales (experts, ceil(n / 128), ceil(k / 128)).
            The kernel never looks at the recipe's block height: scales (experts, n, k / 128)
            would pass DeepGEMM's own checks with another recipe and be misread.
        d: bf16 (rows, n); rows of no group hold anything.
        group_ends: int32 (experts,), start of the group plus its number of rows.
        expected_m: rows of a group, for the choice of the tile; None for upstream's own.
    """
    call = "m_grouped_fp8_gemm_nt_contiguous"
    rows, k = _want_operand(call, "a", a[0])
    groups, n = _want_grouped(call, b, k)
    want_activation_scale(call, "a[1]", a[1], rows, k)
    _want_result(call, d, (rows, n))
    _want_counts(call, "group_ends", group_ends, groups)
    if rows:
        deep_gemm_on(call, d).m_grouped_fp8_fp4_gemm_nt_contiguous(
            a,
            b,
            d,
            group_ends,
            recipe_a=(1, 128),
            recipe_b=(128, 128),
            use_psum_layout=True,
            expected_m_for_psum_layout=expected_m,
        )


def m_grouped_fp8_gemm_nt_masked(
    a: Scaled, b: Scaled, d: torch.Tensor, num_rows: torch.Tensor, *, expected_m: int
) -> None:
    """Write, for each expert, its first num_rows rows times its weight; other rows hold anything.

    Args:
        a: e4m3 (experts, m, k) and its fp32 scales (experts, m, ceil(k / 128)); m a multiple of 128.
            The kernel writes whole tiles of 64 or 128 rows: of a smaller m the rest of a tile lands
            on the next expert's first rows, before or after those are written.
        b: as for the contiguous form. d: bf16 (experts, m, n).
        num_rows: int32 (experts,). expected_m: a positive guess at its mean.
    """
    call = "m_grouped_fp8_gemm_nt_masked"
    want_dtype(call, "a[0]", a[0], _e4m3())
    groups, m, k = _three(call, "a[0]", a[0])
    if m % MASKED_ROWS and groups > 1:
        refuse(
            call,
            "a[0].shape[1] (m)",
            m,
            f"a multiple of {MASKED_ROWS}, the rows of a tile",
            f"allocate {-(-m // MASKED_ROWS) * MASKED_ROWS} rows for each expert; num_rows says how "
            "many of them count",
        )
    _, n = _want_grouped(call, b, k)
    want_shape(call, "b[0]", b[0], (groups, n, k))
    want_fp32(call, "a[1]", a[1])
    want_shape(call, "a[1]", a[1], (groups, m, blocks(k)))
    _want_result(call, d, (groups, m, n))
    _want_counts(call, "num_rows", num_rows, groups)
    if expected_m <= 0:
        refuse(call, "expected_m", expected_m, "a positive number", "pass the mean of num_rows")
    if m and n:
        deep_gemm_on(call, d).m_grouped_fp8_fp4_gemm_nt_masked(
            a, b, d, num_rows, expected_m, recipe_a=(1, 128), recipe_b=(128, 128)
        )


def fp8_einsum_bhr_hdr_bhd(a: Scaled, b: Scaled, d: torch.Tensor) -> None:
    """Write d[t, g] = b[g] @ a[t, g] for each token and group.

    Args:
        a: e4m3 (tokens, groups, r) and its fp32 scales (tokens, groups, ceil(r / 128)).
        b: e4m3 (groups, n, r) and its fp32 scales (groups, ceil(n / 128), ceil(r / 128)).
        d: bf16 (tokens, groups, n). tokens may be 0.
    """
    call = "fp8_einsum_bhr_hdr_bhd"
    want_dtype(call, "a[0]", a[0], _e4m3())
    tokens, groups, r = _three(call, "a[0]", a[0])
    _, n = _want_grouped(call, b, r)
    want_shape(call, "b[0]", b[0], (groups, n, r))
    want_fp32(call, "a[1]", a[1])
    want_shape(call, "a[1]", a[1], (tokens, groups, blocks(r)))
    _want_result(call, d, (tokens, groups, n))
    if tokens:
        deep_gemm_on(call, d).fp8_einsum("bhr,hdr->bhd", a, b, d, recipe=RECIPE)


def _e4m3() -> torch.dtype:
    import torch

    return torch.float8_e4m3fn


def _want_recipe(call: str, recipe: tuple[int, int, int]) -> None:
    if tuple(recipe) != RECIPE:
        refuse(
            call,
            "recipe",
            tuple(recipe),
            f"{RECIPE}: 128-wide activations, 128x128 weights",
            "requantise 32-wide weights with h20_ops.requant and cast activations per 128",
        )


def _want_operand(call: str, argument: str, values: torch.Tensor) -> tuple[int, int]:
    want_dtype(call, f"{argument}[0]", values, _e4m3())
    if values.dim() != 2:
        refuse(call, f"{argument}[0].shape", tuple(values.shape), "two dimensions", "flatten it")
    want_rows(call, f"{argument}[0]", values, multiple_of_bytes=16)
    return values.shape[0], values.shape[1]


def _want_same_k(call: str, values: torch.Tensor, k: int) -> int:
    n, found = _want_operand(call, "b", values)
    if found != k:
        refuse(call, "b[0].shape", tuple(values.shape), f"(n, {k}), k as in a", "check the weight")
    return n


def _three(call: str, argument: str, values: torch.Tensor) -> tuple[int, int, int]:
    if values.dim() != 3:
        refuse(call, f"{argument}.shape", tuple(values.shape), "three dimensions", "reshape it")
    want_rows(call, argument, values, multiple_of_bytes=16)
    first, second, third = values.shape
    return first, second, third


def _want_grouped(call: str, b: Scaled, k: int) -> tuple[int, int]:
    want_dtype(call, "b[0]", b[0], _e4m3())
    groups, n, found = _three(call, "b[0]", b[0])
    if found != k:
        refuse(call, "b[0].shape", tuple(b[0].shape), f"(groups, n, {k}), k as in a", "check b")
    if b[1].dim() != 3 or b[1].shape[0] != groups:
        refuse(
            call,
            "b[1].shape",
            tuple(b[1].shape),
            f"({groups}, {blocks(n)}, {blocks(k)})",
            "keep one 128x128 block scale per group",
        )
    check_gemm_scale(f"b[1] of {call}", b[1], rows=n, columns=k)
    return groups, n


def _want_result(call: str, d: torch.Tensor, shape: tuple[int, ...]) -> None:
    import torch

    want_dtype(call, "d", d, torch.bfloat16)
    want_shape(call, "d", d, shape)
    want_rows(call, "d", d, multiple_of_bytes=16)


def _want_counts(call: str, argument: str, counts: torch.Tensor, groups: int) -> None:
    import torch

    want_dtype(call, argument, counts, torch.int32)
    want_shape(call, argument, counts, (groups,))
    if not counts.is_contiguous():
        refuse(call, f"{argument}.stride()", counts.stride(), "contiguous", "copy it")
