"""FP4 and FP8 weights under coarser power-of-two scales, with a count of what changed.

    result = reblock_fp4(weight, scale)
    print(result.loss)   # exact: 23592960 values unchanged; scales inside a block span 2^5

Tensors on a GPU go through one kernel that counts as it converts; nothing is read back before
`loss` is asked for. Tensors on a CPU go through the twin in h20_ops.torch_ref.reblock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from h20_ops.requant_loss import Reblocked

if TYPE_CHECKING:
    from collections.abc import Callable

    Twin = Callable[..., Reblocked]

BLOCK = 128
GROUP = 32


def reblock_fp4(weight: torch.Tensor, scale: torch.Tensor, *, name: str = "weight") -> Reblocked:
    """Do what requant_expert_fp4 does and give the loss as a value.

    On a GPU, FormatError for scales that no weight should have is raised where the loss is read.
    """
    from h20_ops.torch_ref import reblock as twin

    if weight.device.type != "cuda":
        return twin.reblock_fp4(weight, scale, name=name)
    *lead, n, half = weight.shape
    twin.want_blocks(
        name, weight, scale, n=n, k=half * 2, scale_shape=(*lead, n, half * 2 // GROUP)
    )
    return _on_device("fp4", weight, scale, columns=half * 2, name=name)


def reblock_fp8(weight: torch.Tensor, scale: torch.Tensor, *, name: str = "weight") -> Reblocked:
    """Do what requant_dense_fp8 does and give the loss as a value; errors as for reblock_fp4."""
    from h20_ops.torch_ref import reblock as twin

    if weight.device.type != "cuda":
        return twin.reblock_fp8(weight, scale, name=name)
    *lead, n, k = weight.shape
    twin.want_blocks(name, weight, scale, n=n, k=k, scale_shape=(*lead, n // GROUP, k // GROUP))
    return _on_device("fp8", weight, scale, columns=k, name=name)


def _on_device(
    kind: str, weight: torch.Tensor, scale: torch.Tensor, *, columns: int, name: str
) -> Reblocked:
    from h20_ops.cuda.requant_kernel import launch
    from h20_ops.requant_loss import DeviceLoss

    shape = (*weight.shape[:-1], columns)
    values = torch.empty(shape, dtype=torch.float8_e4m3fn, device=weight.device)
    blocks = (*shape[:-2], shape[-2] // BLOCK, columns // BLOCK)
    scales = torch.empty(blocks, dtype=torch.float32, device=weight.device)
    loss = DeviceLoss(num_values=values.numel(), scale=scale, name=name)
    launch(kind, weight, scale, values, scales, loss.counters)
    return Reblocked(values=values, scales=scales, counted=loss)
