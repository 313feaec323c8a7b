"""Put the tensors of several ranks together to the whole one."""

from __future__ import annotations

import torch

from dih20.errors import DumpUnusable
from dih20.parity.model import TensorRecord


def merge_ranks(parts: list[torch.Tensor], records: list[TensorRecord]) -> torch.Tensor:
    """Give the whole tensor: slices side by side in rank order, or summands added in fp32.

    A tensor-parallel run holds slices (heads, columns) and, before its reduction, summands; an
    expert-parallel one holds summands of the experts' output or slices of the rows. Merged, both
    are the same tensors.
    """
    shard = records[0].shard
    if len(parts) != shard.world or any(record.shard != shard for record in records):
        raise DumpUnusable(
            found=f"{records[0].site}, step {records[0].step}: {len(parts)} parts "
            f"marked {sorted({str(record.shard) for record in records})}",
            expected=f"{shard.world} parts, marked alike",
            remedy="give every rank the same site map, and copy the files of all ranks",
        )
    by_rank = [
        part for _, part in sorted(zip((r.rank for r in records), parts, strict=True), key=_rank)
    ]
    if shard.merge == "concat":
        return torch.cat(by_rank, dim=shard.dim)
    assert shard.merge == "sum", shard
    total = torch.stack([part.float() for part in by_rank]).sum(dim=0)
    return total.to(by_rank[0].dtype)


def _rank(pair: tuple[int, torch.Tensor]) -> int:
    return pair[0]


def disagreeing_ranks(records: list[TensorRecord]) -> list[int]:
    """Give the ranks whose copy of a replicated tensor differs from rank 0's."""
    if records[0].shard.merge != "replicated":
        return []
    return [r.rank for r in records if r.statistics.digest != records[0].statistics.digest]
