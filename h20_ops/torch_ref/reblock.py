"""Twin of the re-encoding kernels: look-ups of bytes, no arithmetic on values, on any device.

On a CPU a strip of 128 rows is converted at a time, which stays in its cache.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from h20_ops.errors import FormatError
from h20_ops.formats import load_ue8m0_scales
from h20_ops.requant_loss import Loss, Reblocked, total_loss
from h20_ops.requant_tables import FP4_HEADROOM, Table, fp4_table, fp8_table

BLOCK = 128
GROUP = 32
_EXPONENT_BIAS = 127


def reblock_fp4(weight: torch.Tensor, scale: torch.Tensor, *, name: str = "weight") -> Reblocked:
    """Do what requant_expert_fp4 does and give the loss as a value."""
    *lead, n, half = weight.shape
    want_blocks(name, weight, scale, n=n, k=half * 2, scale_shape=(*lead, n, half * 2 // GROUP))
    exponents = exponents_of(scale, name)
    return _shaped(_by_rows(_fp4_rows, _flat(weight), _flat(exponents), BLOCK), (*lead, n))


def reblock_fp8(weight: torch.Tensor, scale: torch.Tensor, *, name: str = "weight") -> Reblocked:
    """Do what requant_dense_fp8 does and give the loss as a value."""
    *lead, n, k = weight.shape
    want_blocks(name, weight, scale, n=n, k=k, scale_shape=(*lead, n // GROUP, k // GROUP))
    exponents = exponents_of(scale, name)
    blocks = BLOCK // GROUP
    return _shaped(_by_rows(_fp8_rows, _flat(weight), _flat(exponents), blocks), (*lead, n))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All leading dimensions as rows."""
    return tensor.reshape(-1, tensor.shape[-1])


def _shaped(flat: Reblocked, rows: tuple[int, ...]) -> Reblocked:
    *lead, n = rows
    return Reblocked(
        values=flat.values.view(torch.uint8).view(*rows, -1).view(torch.float8_e4m3fn),
        scales=flat.scales.view(*lead, n // BLOCK, -1),
        counted=flat.counted,
    )


def _fp4_rows(weight: torch.Tensor, exponents: torch.Tensor) -> Reblocked:
    top = _block_max(exponents, rows=BLOCK, columns=BLOCK // GROUP)
    below = _expand(top, BLOCK, BLOCK // GROUP) - exponents
    scales = torch.exp2((top - _EXPONENT_BIAS - FP4_HEADROOM).float())
    return _look_up(
        fp4_table(weight.device), weight, below, scales, GROUP // 2, _spread(top, below)
    )


def _fp8_rows(weight: torch.Tensor, exponents: torch.Tensor) -> Reblocked:
    top = _block_max(exponents, rows=BLOCK // GROUP, columns=BLOCK // GROUP)
    below = _expand(top, BLOCK // GROUP, BLOCK // GROUP) - exponents
    scales = torch.exp2((top - _EXPONENT_BIAS).float())
    per_row = below.repeat_interleave(GROUP, dim=0)
    return _look_up(fp8_table(weight.device), weight, per_row, scales, GROUP, _spread(top, below))


def _by_rows(
    convert: Callable[[torch.Tensor, torch.Tensor], Reblocked],
    weight: torch.Tensor,
    exponents: torch.Tensor,
    scale_rows: int,
) -> Reblocked:
    """Convert a row of blocks at a time on a CPU, where that stays in its cache; else at once."""
    if weight.device.type != "cpu" or weight.shape[0] <= BLOCK:
        return convert(weight, exponents)
    strips = zip(weight.split(BLOCK), exponents.split(scale_rows), strict=True)
    done = [convert(rows, of_rows) for rows, of_rows in strips]
    return Reblocked(
        values=torch.cat([strip.values.view(torch.uint8) for strip in done]).view(
            torch.float8_e4m3fn
        ),
        scales=torch.cat([strip.scales for strip in done]),
        counted=total_loss([strip.loss for strip in done]),
    )


def want_blocks(
    name: str,
    weight: torch.Tensor,
    scale: torch.Tensor,
    *,
    n: int,
    k: int,
    scale_shape: tuple[int, ...],
) -> None:
    """Refuse what is not made of whole blocks of bytes; assert matching shapes and devices."""
    assert weight.element_size() == 1, f"{name}: bytes expected, got {weight.dtype}"
    assert weight.device == scale.device, f"{name}: {weight.device} and {scale.device}"
    assert tuple(scale.shape) == scale_shape, f"{name}: scale {tuple(scale.shape)} != {scale_shape}"
    if n % BLOCK or k % BLOCK:
        raise FormatError(
            f"{name} has {n} rows and {k} columns",
            f"multiples of {BLOCK}: DeepGEMM's SM90 kernels scale whole {BLOCK}x{BLOCK} blocks",
            "check the tensor's name and the configuration; no linear layer of the released model is ragged",
        )


def exponents_of(scale: torch.Tensor, name: str) -> torch.Tensor:
    """Give biased exponents, int32, of ue8m0 bytes or of fp32 powers of two."""
    if scale.dtype != torch.float32:
        return load_ue8m0_scales(scale, torch.uint8, name=f"scale of {name}").to(torch.int32)
    bits = scale.contiguous().view(torch.int32)
    exponents = bits >> 23  # byte 0 is the subnormal 2^-127, whose exponent field is 0 as well
    is_power = (bits & 0x7FFFFF == 0) & (exponents > 0) & (exponents < 255) | (bits == 1 << 22)
    if not bool(is_power.all()):
        first = scale[~is_power].flatten()[0].item()
        raise FormatError(
            f"scale of {name} holds {first:g}",
            "positive powers of two in fp32, as ue8m0 exponents give them",
            "convert the checkpoint's bytes with h20_ops.formats.load_ue8m0_scales; a byte copied as "
            "a number looks like 120.0",
        )
    return exponents


def _block_max(exponents: torch.Tensor, *, rows: int, columns: int) -> torch.Tensor:
    tiles = exponents.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
    return tiles.amax(dim=(1, 3))


def _expand(top: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return top.repeat_interleave(rows, dim=0).repeat_interleave(columns, dim=1)


def _spread(top: torch.Tensor, below: torch.Tensor) -> int:
    """Give the widest distance below a block's top of an exponent that is not 0."""
    if below.numel() == 0:
        return 0
    rows, columns = below.shape[0] // top.shape[0], below.shape[1] // top.shape[1]
    used = below < _expand(top, rows, columns)
    return int(torch.where(used, below, torch.zeros_like(below)).max())


def _look_up(
    table: Table,
    weight: torch.Tensor,
    below: torch.Tensor,
    scales: torch.Tensor,
    columns: int,
    spread: int,
) -> Reblocked:
    """Give each byte's new code by how far its scale lies below the block's largest.

    Args:
        below: int32, (rows, columns of weight / columns).
    """
    places = below.clamp(max=table.places - 1) * 256
    old = weight.contiguous().view(torch.uint8).to(torch.int32)
    entries = (old.unflatten(1, (-1, columns)) + places.unsqueeze(-1)).flatten(1)
    codes = table.codes.flatten()[entries].view(torch.uint8)
    return Reblocked(
        values=codes.view(torch.float8_e4m3fn),
        scales=scales,
        counted=_loss(table, entries, below, scales, num_values=codes.numel(), spread=spread),
    )


def _loss(
    table: Table,
    entries: torch.Tensor,
    below: torch.Tensor,
    scales: torch.Tensor,
    *,
    num_values: int,
    spread: int,
) -> Loss:
    """Count what changed; places that the table knows to be harmless need no count."""
    if num_values == 0 or int(below.max()) < table.exact_places:
        return Loss(num_values=num_values, num_inexact=0, max_abs_error=0.0, spread=spread)
    count = table.num_inexact.flatten()[entries].sum(dtype=torch.int64)
    worst = table.error.flatten()[entries].unflatten(0, (-1, BLOCK)).amax(dim=1)
    per_block = worst.unflatten(1, (scales.shape[1], -1)).amax(dim=-1)
    return Loss(
        num_values=num_values,
        num_inexact=int(count),
        max_abs_error=float((per_block * scales).max()),
        spread=spread,
    )
