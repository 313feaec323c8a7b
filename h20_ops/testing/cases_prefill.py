"""Cases of sparse_mla_prefill, shared by its tests and its benchmark.

upstream_cases: FlashMLA's own recipes. own_cases: what DeepInfer's calls add. speed_cases: shapes
with numbers to reach. H20_OPS_FULL_SWEEP=1 widens the default selection of a sweep to all of it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

import torch

from h20_ops.testing.case_data import distinct_indices, make_sinks, pad_row_stride
from h20_ops.testing.seeds import generator_for

IndexKind = Literal["random", "all_invalid", "duplicates", "window_then_topk"]


@dataclass(frozen=True, kw_only=True)
class PrefillCase:
    """One call. The id of a case names every field that is not the default."""

    s_q: int
    s_kv: int
    topk: int
    heads: int = 64
    sink: bool = True
    length: bool = False
    amplified: bool = False
    indices: IndexKind = "random"
    poisoned: bool = False  # NaN in kv rows that no index row lists
    strided: bool = False  # q, kv and index rows are slices of wider tensors
    wide_keys: bool = False  # keys of order one, so that the softmax has peaks

    @property
    def id(self) -> str:
        shown = [
            f"{f.name}={getattr(self, f.name)}"
            for f in fields(self)
            if f.name in ("s_q", "s_kv", "topk") or getattr(self, f.name) != f.default
        ]
        return "-".join(shown)

    @property
    def tolerance_prefix(self) -> str:
        if self.wide_keys:
            return "mla_prefill.wide"
        return "mla_prefill.amplified" if self.amplified else "mla_prefill"


@dataclass(frozen=True, kw_only=True)
class PrefillInputs:
    """Arguments of one call, on one device."""

    q: torch.Tensor
    kv: torch.Tensor
    indices: torch.Tensor
    sm_scale: float
    attn_sink: torch.Tensor | None
    topk_length: torch.Tensor | None


def make_prefill(case: PrefillCase, device: torch.device | str = "cpu") -> PrefillInputs:
    """Build the tensors of a case, the same ones every time."""
    rng = generator_for(f"mla_prefill {case.id}", device)
    q = torch.randn((case.s_q, case.heads, 512), generator=rng, device=device).clamp_(-1, 1)
    kv = torch.randn((case.s_kv, 1, 512), generator=rng, device=device)
    kv *= 1.0 if case.wide_keys else 0.1
    if case.amplified:
        kv *= 1 + 255 * (torch.rand((case.s_kv, 1, 1), generator=rng, device=device) < 0.02)
    indices = _make_indices(case, rng)
    q, kv = q.to(torch.bfloat16), kv.to(torch.bfloat16)
    if case.poisoned:
        kv = _poison_unlisted(kv, indices)
    if case.strided:
        q = torch.nn.functional.pad(q, (0, 0, 0, 8))[:, : case.heads]
        kv = torch.nn.functional.pad(kv, (0, 64))[..., :512]
        indices = pad_row_stride(indices, 4)
    length = None
    if case.length:
        shape = (case.s_q,)
        length = torch.randint(0, case.topk + 1, shape, generator=rng, device=device)
        length = length.to(torch.int32)
    return PrefillInputs(
        q=q,
        kv=kv,
        indices=indices.unsqueeze(1),
        sm_scale=512**-0.5 if case.wide_keys else 512**-0.55,
        attn_sink=make_sinks(case.heads, rng) if case.sink else None,
        topk_length=length,
    )


def _make_indices(case: PrefillCase, rng: torch.Generator) -> torch.Tensor:
    """int32 (s_q, topk), invalid ones being -1 or at least s_kv, anywhere in the row."""
    device, s_q, s_kv, topk = rng.device, case.s_q, case.s_kv, case.topk
    if case.indices == "all_invalid":
        shape = (s_q, topk)
        above = torch.randint(0, 2, shape, generator=rng, device=device, dtype=torch.int32)
        return torch.where(above == 1, s_kv + 7, -1).to(torch.int32)
    if case.indices == "duplicates":  # 128 times one row, as padding rows under context parallelism
        return torch.zeros((s_q, topk), dtype=torch.int32, device=device)
    if case.indices == "window_then_topk":  # early rows: a -1 tail in the window, then the rest
        window = torch.full((s_q, 128), -1, dtype=torch.int32, device=device)
        row = torch.arange(s_q, device=device)
        column = torch.arange(128, device=device)
        seen = row.unsqueeze(1) - column
        window = torch.where(seen >= 0, seen % s_kv, window).to(torch.int32)
        limits = (row + 1).clamp_max(s_kv)
        rest = distinct_indices(s_q, topk - 128, limits, rng, scatter=False)
        return torch.cat((window, rest), dim=1)
    indices = distinct_indices(s_q, topk, torch.full((s_q,), s_kv, device=device), rng)
    drop = torch.rand((s_q, topk), generator=rng, device=device)
    indices = torch.where(drop < 0.05, -1, indices)
    return torch.where(drop > 0.97, s_kv + (indices & 1023), indices).to(torch.int32)


def _poison_unlisted(kv: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    s_kv = kv.shape[0]
    listed = torch.zeros(s_kv, dtype=torch.bool, device=kv.device)
    listed[indices[(indices >= 0) & (indices < s_kv)].long()] = True
    return torch.where(listed.view(-1, 1, 1), kv, torch.nan)


_IRREGULAR = [(592, 128), (1840, 256), (1592, 384), (1521, 512), (95, 128), (153, 256), (114, 384)]


def upstream_cases() -> Iterator[PrefillCase]:
    """FlashMLA's recipes 1 to 5, in its order."""
    regular = [(128, 128), (256, 256), (512, 512)]
    for heads, s_q, (s_kv, topk) in itertools.product(
        (128, 64), (1, 62, 213), regular + _IRREGULAR
    ):
        yield PrefillCase(s_q=s_q, s_kv=s_kv, topk=topk, heads=heads, sink=False)
    flags = (False, True)
    for heads, (s_kv, topk), s_q, sink, length, amplified in itertools.product(
        (128, 64), _IRREGULAR, (62, 213), flags, flags, flags
    ):
        if not (sink or length or amplified):
            continue  # those are in the first sweep
        case = PrefillCase(
            s_q=s_q,
            s_kv=s_kv,
            topk=topk,
            heads=heads,
            sink=sink,
            length=length,
            amplified=amplified,
        )
        if full_sweep() or _kept(case.id, 4):
            yield case
    for s_q, s_kv, topk in [
        (1, 128, 128),
        (1, 256, 256),
        (1234, 4321, 4096),
        (4096, 2048, 2048),
    ]:
        for amplified in flags:
            yield PrefillCase(
                s_q=s_q,
                s_kv=s_kv,
                topk=topk,
                length=True,
                amplified=amplified,
                indices="all_invalid",
            )
    for (s_kv, topk), s_q in itertools.product([(32, 2048), (64, 8192)], (1, 1024)):
        yield PrefillCase(s_q=s_q, s_kv=s_kv, topk=topk)
    yield PrefillCase(s_q=70_000, s_kv=256, topk=256)


def own_cases() -> Iterator[PrefillCase]:
    """What the engine's calls and our contract add to upstream's recipes."""
    for topk in (1, 7, 63, 64, 65, 100, 127, 129, 192, 640):
        yield PrefillCase(s_q=65, s_kv=777, topk=topk, wide_keys=True, poisoned=True)
    for heads in (1, 16, 64, 96, 128):
        yield PrefillCase(s_q=33, s_kv=500, topk=192, heads=heads, wide_keys=True)
    for topk in (128, 640):
        yield PrefillCase(s_q=700, s_kv=900, topk=max(topk, 256), indices="window_then_topk")
        yield PrefillCase(s_q=129, s_kv=900, topk=topk, strided=True, length=True, poisoned=True)
        yield PrefillCase(s_q=40, s_kv=900, topk=topk, indices="duplicates", wide_keys=True)
    yield PrefillCase(s_q=1, s_kv=1, topk=1, sink=False)
    yield PrefillCase(s_q=200, s_kv=3, topk=640, poisoned=True)


def speed_cases() -> Iterator[PrefillCase]:
    """Shapes with a number to reach, the model's own width among them."""
    for topk in (512, 1024, 2048):
        yield PrefillCase(s_q=4096, s_kv=8192, topk=topk)
    for heads, s_kv in itertools.product((64, 128), (4096, 8192, 32768)):
        yield PrefillCase(s_q=4096, s_kv=s_kv, topk=640, heads=heads)


def full_sweep() -> bool:
    """True when every case of a sweep is wanted, not the default share of it."""
    return os.environ.get("H20_OPS_FULL_SWEEP", "") == "1"


def _kept(case_id: str, one_in: int) -> bool:
    """Keep about one case in `one_in`, chosen by its id."""
    from h20_ops.testing.seeds import seed_of

    return seed_of(case_id) % one_in == 0
