"""Expert-parallel dispatch and combine of one rank: group token rows by expert, add them up again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from h20_ops.local_buffers.one_rank import Done, want_one_rank

if TYPE_CHECKING:
    import torch

    Hidden: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]

_SF_ROW_MULTIPLE = 4  # TMA reads fp32 scales in columns of 16 bytes


@dataclass(frozen=True, kw_only=True)
class ExpertRows:
    """Where each token's rows went.

    psum_num_recv_tokens_per_expert: int32 (experts,), start of the expert's rows plus their number.
        The next expert starts at the next multiple of the alignment.
    row_of: int64 (tokens, topk), -1 where a token takes no expert.
    """

    psum_num_recv_tokens_per_expert: torch.Tensor
    row_of: torch.Tensor


class LocalEPBuffer:
    """EPBuffer of a single rank; nothing is allocated and nothing is kept between calls."""

    num_bytes = 0

    def __init__(self, *, group: Any, num_topk: int = 0, **_sizes: Any) -> None:
        want_one_rank(group, "LocalEPBuffer", "EPBuffer")
        self.num_topk = num_topk

    @staticmethod
    def get_buffer_size_hint(**_sizes: Any) -> int:
        """Give 0 bytes."""
        return 0

    @staticmethod
    def get_theoretical_num_sms(**_sizes: Any) -> int:
        """Give 0: no multiprocessor is set aside for communication."""
        return 0

    @staticmethod
    def capture() -> Done:
        """Give the event of the work so far: all is on one stream."""
        return Done()

    def destroy(self) -> None:
        """Free nothing."""

    def dispatch(
        self,
        *,
        x: Hidden,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        num_experts: int,
        expert_alignment: int = 128,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        do_expand: bool = True,
        use_tma_aligned_col_major_sf: bool = True,
        **_communication: Any,
    ) -> Done:
        """Give the rows of all tokens grouped by expert.

        The number of rows is the largest there can be, so that the device need not be read; rows of
        no token repeat token 0 and have weight 0.

        Args:
            x: bf16 (tokens, hidden), or e4m3 with fp32 scales (tokens, hidden / 128) of any strides.
            topk_idx: int64 (tokens, topk), distinct experts of a token, -1 for none.
            topk_weights: fp32 (tokens, topk).
            expert_alignment: each expert's rows start at a multiple of it.
            cumulative_local_expert_recv_stats: int (experts,), the counts are added to it.
            do_expand, use_tma_aligned_col_major_sf: True.
        Returns:
            Done of (rows as x, None, fp32 weights (rows,), ExpertRows). Scales are column-major with
            strides (1, rows rounded up to 4). All tensors are new ones.
        """
        import torch

        tokens, topk = topk_idx.shape
        assert do_expand and use_tma_aligned_col_major_sf, "only the expanded, TMA-aligned form"
        assert topk_weights.shape == topk_idx.shape, (topk_weights.shape, topk_idx.shape)
        values = x[0] if isinstance(x, tuple) else x
        assert values.shape[0] == tokens, (tuple(values.shape), tuple(topk_idx.shape))
        rows = worst_case_rows(tokens, topk, num_experts, expert_alignment)
        plan = _group(topk_idx, num_experts, expert_alignment, rows)
        if cumulative_local_expert_recv_stats is not None:
            stats = cumulative_local_expert_recv_stats
            stats.add_(plan.counts.to(stats.dtype))
        token_of = plan.slot_of.clamp_min(0) // max(topk, 1)
        taken = plan.slot_of >= 0
        weights = (
            topk_weights.flatten()[plan.slot_of.clamp_min(0)]
            if tokens
            else topk_weights.new_empty(0)
        )
        weights = torch.where(taken, weights, torch.zeros_like(weights))
        received: Hidden = _take_rows(values, token_of)
        if isinstance(x, tuple):
            received = (received, _take_scales(x[1], token_of))
        handle = ExpertRows(psum_num_recv_tokens_per_expert=plan.ends, row_of=plan.row_of)
        return Done((received, None, weights, handle))

    def combine(
        self,
        *,
        x: torch.Tensor,
        handle: ExpertRows,
        bias: torch.Tensor | None = None,
        **_communication: Any,
    ) -> Done:
        """Give each token the sum of its rows, in fp32, plus bias.

        Args:
            x: bf16 (rows, hidden), weights applied already.
            bias: bf16 (tokens, hidden), the shared expert.
        Returns:
            Done of (bf16 (tokens, hidden), None).
        """
        import torch

        tokens, topk = handle.row_of.shape
        total = torch.zeros((tokens, x.shape[1]), dtype=torch.float32, device=x.device)
        if x.shape[0]:
            for column in range(topk):
                row = handle.row_of[:, column]
                part = x.index_select(0, row.clamp_min(0))
                total += part.masked_fill_(
                    (row < 0).unsqueeze(1), 0
                )  # sums in fp32, element by element
        if bias is not None:
            total += bias.float()
        return Done((total.to(torch.bfloat16), None))


@dataclass(frozen=True, kw_only=True)
class _Plan:
    counts: torch.Tensor  # int64 (experts,)
    ends: torch.Tensor  # int32 (experts,)
    row_of: torch.Tensor  # int64 (tokens, topk)
    slot_of: torch.Tensor  # int64 (rows,): token * topk + column, -1 for none


def worst_case_rows(tokens: int, topk: int, num_experts: int, alignment: int) -> int:
    """Give the most rows that any choice of experts takes, each expert's padded."""
    if tokens == 0:
        return 0
    used = tokens * min(topk, num_experts)
    return -(-(used + (alignment - 1) * num_experts) // alignment) * alignment


def _group(topk_idx: torch.Tensor, num_experts: int, alignment: int, rows: int) -> _Plan:
    import torch

    expert = topk_idx.flatten().long()
    taken = expert >= 0
    # those without an expert are sorted behind the last one and written to a row that is cut off
    bucket = torch.where(taken, expert, torch.full_like(expert, num_experts))
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=expert.device)
    counts.scatter_add_(0, bucket, torch.ones_like(bucket))
    padded = (counts[:num_experts] + alignment - 1) // alignment * alignment
    starts = padded.cumsum(0) - padded
    order = bucket.sort(stable=True).indices
    before = counts.cumsum(0) - counts
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel(), device=order.device)
    start_of = torch.cat([starts, starts.new_full((1,), rows)])
    row = start_of[bucket] + torch.where(taken, place - before[bucket], torch.zeros_like(place))
    slot_of = torch.full((rows + 1,), -1, dtype=torch.int64, device=expert.device)
    slot_of.scatter_(0, row, torch.arange(row.numel(), device=row.device))
    return _Plan(
        counts=counts[:num_experts],
        ends=(starts + counts[:num_experts]).to(torch.int32),
        row_of=torch.where(taken, row, torch.full_like(row, -1)).view(topk_idx.shape),
        slot_of=slot_of[:rows],
    )


def _take_rows(values: torch.Tensor, token_of: torch.Tensor) -> torch.Tensor:
    import torch

    if values.element_size() == 1:  # index_select is not defined for every 8-bit type
        return values.view(torch.uint8).index_select(0, token_of).view(values.dtype)
    return values.index_select(0, token_of)


def _take_scales(scales: torch.Tensor, token_of: torch.Tensor) -> torch.Tensor:
    import torch

    assert scales.dtype == torch.float32, f"scales of x: fp32 expected on SM90, got {scales.dtype}"
    rows = token_of.numel()
    padded = -(-rows // _SF_ROW_MULTIPLE) * _SF_ROW_MULTIPLE
    columns = torch.empty((scales.shape[1], padded), dtype=torch.float32, device=scales.device)
    taken = columns.t()[:rows]
    taken.copy_(scales.index_select(0, token_of))
    return taken
