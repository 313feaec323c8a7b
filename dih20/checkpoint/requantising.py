"""What a checkpoint loses on SM90: every FP4 and FP8 weight re-encoded as the engine's loader does it.

One tensor is in memory at a time, so a checkpoint of any size goes through.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.errors import ConfigError, UsageError
from dih20.groups import ensure

if TYPE_CHECKING:
    from h20_ops.requant_loss import Loss
    from v41.checkpoint import CheckpointReader
    from v41.tensors import TensorSpec

_WORST_SHOWN = 10


def requant(ui: Console, path: str, device: str = "cpu") -> dict[str, Any]:
    """Print what changes per kind of weight and which tensors change most; writes nothing."""
    ensure(ui, "torch")
    _want_device(device)
    from h20_ops.errors import FormatError
    from h20_ops.requant_loss import total_loss
    from v41.checkpoint import CheckpointReader
    from v41.errors import CheckpointError

    started = time.monotonic()
    losses: dict[str, list[tuple[str, Loss]]] = defaultdict(list)
    try:
        reader = CheckpointReader(Path(path))
        specs = [spec for spec in reader.specs if spec.storage in ("fp4", "fp8")]
        sizes = [reader.size_bytes(spec.name) for spec in specs]
        with ui.progress("re-encode weights", sum(sizes)) as advance:
            for (spec, loss), size in zip(_losses(reader, specs, device), sizes, strict=True):
                losses[spec.storage].append((spec.name, loss))
                advance(size)
    except (CheckpointError, FormatError) as broken:
        raise ConfigError(
            found=broken.found, expected=broken.expected, remedy=broken.next_step
        ) from broken
    totals = {storage: total_loss(loss for _, loss in found) for storage, found in losses.items()}
    worst = sorted(
        (pair for found in losses.values() for pair in found if not pair[1].is_exact),
        key=lambda pair: pair[1].num_inexact / pair[1].num_values,
        reverse=True,
    )[:_WORST_SHOWN]
    columns = (
        "weights",
        "tensors",
        "values",
        "changed",
        "by at most",
        "spread of scales in a block",
    )
    ui.table(
        columns, [(kind, str(len(losses[kind])), *_cells(total)) for kind, total in totals.items()]
    )
    if worst:
        ui.table(("changed most", *columns[2:]), [(name, *_cells(loss)) for name, loss in worst])
    seconds = time.monotonic() - started
    ui.line(f"{sum(sizes) / 1e6:.1f} MB of weights in {seconds:.1f} s")
    return {
        "totals": {kind: _plain(total) for kind, total in totals.items()},
        "worst": {name: _plain(loss) for name, loss in worst},
        "bytes": sum(sizes),
        "seconds": round(seconds, 1),
    }


def _want_device(device: str) -> None:
    """Refuse a device that this machine does not have; nothing is chosen silently."""
    import torch

    if device == "cpu":
        return
    if device != "cuda":
        raise UsageError(
            found=f"device {device!r}",
            expected="cpu, or cuda for the GPU of this machine",
            remedy="./inv checkpoint requant PATH --device cuda",
        )
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
        raise UsageError(
            found=f"torch {torch.__version__} sees {name}",
            expected="an SM90 GPU (H20, H100 or H200) for --device cuda",
            remedy="leave --device out: a CPU gives the same numbers, more slowly",
        )


def _losses(
    reader: CheckpointReader, specs: list[TensorSpec], device: str
) -> Iterator[tuple[TensorSpec, Loss]]:
    from h20_ops.reblock import reblock_fp4, reblock_fp8

    for spec in specs:
        assert spec.scale_name is not None, f"{spec.name} has no scale"
        convert = reblock_fp4 if spec.storage == "fp4" else reblock_fp8
        weight, scale = reader.read(spec.name), reader.read(spec.scale_name)
        yield spec, convert(weight.to(device), scale.to(device), name=spec.name).loss


def _cells(loss: Loss) -> tuple[str, str, str, str]:
    share = loss.num_inexact / loss.num_values if loss.num_values else 0.0
    return (
        f"{loss.num_values / 1e6:.2f} M",
        "none" if loss.is_exact else f"{loss.num_inexact} ({share:.2%})",
        "" if loss.is_exact else f"{loss.max_abs_error:.3g}",
        f"2^{loss.spread}",
    )


def _plain(loss: Loss) -> dict[str, Any]:
    return {
        "num_values": loss.num_values,
        "num_inexact": loss.num_inexact,
        "max_abs_error": loss.max_abs_error,
        "spread": loss.spread,
    }
