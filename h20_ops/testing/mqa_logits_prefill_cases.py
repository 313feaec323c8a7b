"""Cases of the prefill indexer logits: shared by GPU tests and benchmark.

Tolerances are our own. Products of e2m1 values are exact and few bits wide; what remains against the
fp32 twin is the order of fp32 sums and the tensor core's FP8 accumulation, which keeps about 13 bits
below the largest addend of a step. So the bound is on the error relative to the size of what was added,
sum over heads of |w| * |q| . |k|, not to a sum that may cancel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from h20_ops.formats import decode_e2m1, decode_ue8m0, unpack_nibbles
from h20_ops.testing.compare import normalised_difference

Ranges = Literal["causal", "packed", "odd", "full", "ragged"]
# Of sum |w| |q| |k|. The tensor core adds 32 products and the sum so far in steps of about 2^-13 of the
# largest, dropping what is below: each of 4 times, 2^-13 of at most the magnitude for a few of them.
# Measured on the H200: below 2^-11.6 over cases of 10^5 logits.
RELATIVE_TO_MAGNITUDE = 2.0**-10
EXACT_SPREAD, ROUNDED = 14, 2.0**-15
# 1 - 2 sum(xy) / sum(x^2 + y^2); upstream allows 5e-6 against its dequantised reference.
NORMALISED = 1e-6


@dataclass(frozen=True, kw_only=True)
class LogitsCase:
    """rows x keys with `heads`; exponents of a vector's groups span up to `spread`, codes are random.

    block 0 is dense, else `candidates` blocks of that size per row. `strided` pads every stride the
    contract leaves free.
    """

    rows: int
    keys: int
    heads: int = 32
    ranges: Ranges = "causal"
    spread: int = 6
    block: int = 0
    candidates: int = 0
    strided: bool = False
    max_kv_len: int = 0  # 0: all keys
    seed: int = 0

    @property
    def id(self) -> str:
        """Name of the test."""
        dense = f"{self.ranges}-s{self.spread}"
        more = f"-b{self.block}x{self.candidates}" if self.block else ""
        more += "-strided" if self.strided else ""
        more += f"-max{self.max_kv_len}" if self.max_kv_len else ""
        return f"{self.rows}x{self.keys}-h{self.heads}-{dense}{more}"


def dense_cases() -> Iterator[LogitsCase]:
    """Small dense cases: every kind of range, odd sizes, both head counts."""
    for rows, keys in ((1, 1), (3, 65), (8, 128), (13, 1000), (70, 4097)):
        for heads in (32, 64):
            yield LogitsCase(rows=rows, keys=keys, heads=heads, seed=rows)
    kinds: tuple[Ranges, ...] = ("packed", "odd", "full", "ragged")
    for ranges in kinds:
        for heads in (32, 64):
            yield LogitsCase(rows=67, keys=2500, heads=heads, ranges=ranges, seed=9)
    for heads in (1, 8, 20, 33, 48):
        yield LogitsCase(rows=9, keys=300, heads=heads, seed=heads)
    yield LogitsCase(rows=40, keys=700, strided=True, seed=3)
    yield LogitsCase(rows=40, keys=700, heads=64, strided=True, ranges="odd", seed=4)
    yield LogitsCase(rows=33, keys=2000, ranges="ragged", max_kv_len=777, seed=5)
    yield LogitsCase(rows=600, keys=9000, ranges="packed", seed=6)
    for spread in (0, 14):
        yield LogitsCase(rows=50, keys=900, spread=spread, seed=spread)


def candidate_cases() -> Iterator[LogitsCase]:
    """Small candidate cases: both blocks, few and many slots, starts on and off multiples of a block."""
    kinds: tuple[Ranges, ...] = ("causal", "packed", "odd", "ragged")
    for block, heads, ranges in itertools.product((8, 16), (32, 64), kinds):
        yield LogitsCase(
            rows=37,
            keys=5000,
            heads=heads,
            ranges=ranges,
            block=block,
            candidates=300,
            seed=block,
        )
    for rows, candidates in ((1, 4), (2, 8), (3, 128), (133, 2048), (265, 17)):
        yield LogitsCase(
            rows=rows, keys=40_003, ranges="odd", block=8, candidates=candidates, seed=rows
        )
    yield LogitsCase(rows=5, keys=70_000, ranges="full", block=16, candidates=4096, seed=1)
    yield LogitsCase(rows=30, keys=900, block=8, candidates=50, strided=True, ranges="odd", seed=2)


@dataclass(kw_only=True)
class LogitsInputs:
    """Arguments of the operator; `kwargs` gives them by name."""

    q: torch.Tensor
    q_sf: torch.Tensor
    k: torch.Tensor
    k_sf: torch.Tensor
    weights: torch.Tensor
    ks: torch.Tensor
    ke: torch.Tensor
    max_kv_len: int
    candidate_blocks: torch.Tensor | None = None
    candidate_block_size: int = 0

    def kwargs(self) -> dict[str, Any]:
        """All arguments by name."""
        return dict(self.__dict__)

    def dense(self) -> dict[str, Any]:
        """The arguments without candidates."""
        return {**self.__dict__, "candidate_blocks": None, "candidate_block_size": 0}


def make_logits(case: LogitsCase, device: str) -> LogitsInputs:
    """Draw a case's tensors."""
    rng = torch.Generator(device).manual_seed(1000 + case.seed)
    q, q_sf = packed(case.rows, case.heads, spread=case.spread, rng=rng, strided=case.strided)
    k, k_sf = packed(case.keys, spread=case.spread, rng=rng, strided=case.strided)
    stride = -(-case.heads // 8) * 8 + (8 if case.strided else 0)
    weights = torch.randn(case.rows, stride, generator=rng, device=device).bfloat16()
    ks, ke = ranges_of(case, device)
    inputs = LogitsInputs(
        q=q,
        q_sf=q_sf,
        k=k,
        k_sf=k_sf,
        weights=weights[:, : case.heads],
        ks=ks,
        ke=ke,
        max_kv_len=case.max_kv_len or case.keys,
    )
    if case.block:
        lengths = (ke - ks).clamp(0, inputs.max_kv_len)
        inputs.candidate_blocks = draw_candidates(lengths, case.block, case.candidates, rng)
        inputs.candidate_block_size = case.block
    return inputs


def packed(
    *shape: int, spread: int, rng: torch.Generator, strided: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random codes (..., 64) int8 and exponents (...) int32 whose groups span at most `spread`."""
    device = rng.device
    codes = torch.randint(-128, 128, (*shape, 64), generator=rng, device=device, dtype=torch.int8)
    base = torch.randint(110, 118, (*shape, 1), generator=rng, device=device)
    above = torch.randint(0, spread + 1, (*shape, 4), generator=rng, device=device)
    exponents = (base + above).to(torch.uint8).view(torch.int32).squeeze(-1)
    if not strided:
        return codes, exponents
    wide = torch.full((*shape[:-1], shape[-1] + 1, 96), 127, dtype=torch.int8, device=device)
    wide[..., : shape[-1], :64] = codes
    far = torch.full((*shape[:-1], shape[-1], 3), -1, dtype=torch.int32, device=device)
    far[..., 0] = exponents
    return wide[..., : shape[-1], :64], far[..., 0]


def ranges_of(case: LogitsCase, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ks, ke: int32 (rows,).

    causal: the last rows of one sequence. packed: five sequences one after the other. odd: as packed,
    with starts that are multiples of nothing. full: all keys. ragged: anything, with empty rows.
    """
    rows, keys = case.rows, case.keys
    row = torch.arange(rows)
    if case.ranges == "full":
        ks, ke = torch.zeros_like(row), torch.full_like(row, keys)
    elif case.ranges == "causal":
        ks = torch.zeros_like(row)
        ke = (keys - rows + row + 1).clamp(0, keys)
    elif case.ranges == "ragged":
        rng = torch.Generator().manual_seed(case.seed)
        ks = torch.randint(0, keys, (rows,), generator=rng)
        ke = torch.randint(0, keys + 1, (rows,), generator=rng)
    else:
        each = -(-rows // 5)
        length = keys // 5
        ks = row // each * length
        if case.ranges == "odd":
            ks = (ks + 3 * (row // each) + 1).clamp(max=keys - 1)
        ke = (ks + length - each + row % each + 1).clamp(0, keys)
    return ks.to(device, torch.int32), ke.to(device, torch.int32)


def draw_candidates(
    lengths: torch.Tensor, block: int, count: int, rng: torch.Generator
) -> torch.Tensor:
    """int32 (rows, count): ascending distinct blocks of each row, its last one among them, -1 behind."""
    device = lengths.device
    there = (lengths.long() + block - 1) // block
    most = max(1, int(there.max()))
    rank = torch.rand((lengths.shape[0], most), generator=rng, device=device)
    at = torch.arange(most, device=device)
    rank.masked_fill_(at >= there.unsqueeze(1), 2.0)
    rank.masked_fill_(at == there.unsqueeze(1) - 1, -1.0)
    kept = min(count, most)
    chosen = rank.argsort(dim=1)[:, :kept]
    chosen = torch.where(chosen < there.unsqueeze(1), chosen, most).sort(dim=1).values
    ids = torch.full((lengths.shape[0], count), -1, dtype=torch.int32, device=device)
    ids[:, :kept] = torch.where(chosen < most, chosen, -1).int()
    return ids


def neighbour_candidates(
    rows: int, blocks: int, count: int, rng: torch.Generator, keep: float = 0.8
) -> torch.Tensor:
    """int32 (rows, count): distinct ascending blocks; a row keeps about `keep` of the row before it."""
    device = rng.device
    score = torch.rand(blocks, generator=rng, device=device)
    listed = []
    for _ in range(rows):
        ids = score.topk(count).indices
        listed.append(ids.sort().values.int())
        dropped = ids[torch.rand(count, generator=rng, device=device) > keep]
        score[dropped] = 0.0
        fresh = torch.randint(0, blocks, dropped.shape, generator=rng, device=device)
        score[fresh] = 1.0 + torch.rand(dropped.shape, generator=rng, device=device)
    return torch.stack(listed)


def valid_columns(inputs: LogitsInputs) -> torch.Tensor:
    """bool (rows, columns): where dense logits stand."""
    columns = torch.arange(inputs.max_kv_len, device=inputs.ks.device)
    ends = torch.minimum(inputs.ke, torch.full_like(inputs.ke, inputs.k.shape[0]))
    return columns < (ends - inputs.ks).unsqueeze(1)


def check_dense(inputs: LogitsInputs, got: torch.Tensor, want: torch.Tensor) -> None:
    """Assert that fp32 dense logits are the twin's within the bounds, and -inf or unwritten elsewhere."""
    valid = valid_columns(inputs)
    bound = at_columns(inputs, error_bounds(inputs))
    x, y = torch.where(valid, got, 0.0), torch.where(valid, want, 0.0)
    excess = ((x - y).abs() / bound.clamp_min(torch.finfo(torch.float32).tiny)).masked_fill(
        ~valid, 0
    )
    unequal = valid & ~((x - y).abs() <= bound) & (x != y)
    if bool(unequal.any()):
        row, column = (int(v) for v in unequal.nonzero()[0])
        raise AssertionError(
            f"({row}, {column}): got {float(x[row, column])!r}, want {float(y[row, column])!r}, allowed "
            f"{float(bound[row, column]):.3e}; {int(unequal.sum())} of {int(valid.sum())} are out, the "
            f"worst at {float(excess.nan_to_num(torch.inf).max()):.2f} of its bound"
        )
    difference = normalised_difference(x, y)
    assert difference <= NORMALISED, f"normalised difference {difference:.3e} over {NORMALISED:.1e}"


def at_columns(inputs: LogitsInputs, per_key: torch.Tensor) -> torch.Tensor:
    """Move (rows, keys) to (rows, max_kv_len): column c is key ks + c."""
    columns = torch.arange(inputs.max_kv_len, device=per_key.device)
    keys = (inputs.ks.long().unsqueeze(1) + columns).clamp(0, per_key.shape[1] - 1)
    return per_key.gather(1, keys)


def error_bounds(inputs: LogitsInputs) -> torch.Tensor:
    """fp32 (rows, keys): how far a logit may be from its fp32 value.

    RELATIVE_TO_MAGNITUDE of what is added up; and where a vector's exponents span more than 14, 2^-15 of
    its largest value in every channel.
    """
    q, k = _decoded(inputs.q, inputs.q_sf).abs(), _decoded(inputs.k, inputs.k_sf).abs()
    weights = inputs.weights.float().abs()
    bounds = RELATIVE_TO_MAGNITUDE * (torch.einsum("rhd,rh->rd", q, weights) @ k.t())
    q_lost = q.amax(2) * _is_wide(inputs.q_sf) * ROUNDED
    k_lost = k.amax(1) * _is_wide(inputs.k_sf) * ROUNDED
    bounds += torch.outer((q_lost * weights).sum(1), k.sum(1))
    bounds += torch.outer((q.sum(2) * weights).sum(1), k_lost)
    return bounds


def _is_wide(exponents: torch.Tensor) -> torch.Tensor:
    groups = exponents.contiguous().unsqueeze(-1).view(torch.uint8).int()
    return (groups.amax(-1) - groups.amin(-1) > EXACT_SPREAD).float()


def _decoded(codes: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    scales = decode_ue8m0(exponents.contiguous().unsqueeze(-1).view(torch.uint8))
    values = decode_e2m1(unpack_nibbles(codes.contiguous().view(torch.uint8)))
    return (values.unflatten(-1, (-1, 32)) * scales.unsqueeze(-1)).flatten(-2)
