"""Cases of sparse_mla_decode, shared by its tests and its benchmark.

A scope is one cache with its index rows: the window (always FP8) or the extra, compressed one (FP8
or FP4). upstream_cases: FlashMLA's recipes; own_cases: the engine's rings, strides and widths.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch

from h20_ops.kv_cache.layouts import V41_FP4, V41_FP8, KvLayout
from h20_ops.kv_cache.records import write_kv
from h20_ops.testing.case_data import distinct_indices, make_sinks
from h20_ops.testing.cases_prefill import full_sweep
from h20_ops.testing.seeds import generator_for

POISON = 0xFF  # NaN as an e4m3 value, as an e4m3 scale and as a ue8m0 scale


@dataclass(frozen=True, kw_only=True)
class Scope:
    """One cache: s_k tokens per request in pages of `page_size`, `topk` of them listed.

    page_stride: bytes from page to page, None for dense pages. first_page: pages of poison before
    the first one in use, which pushes offsets beyond 2^31.
    """

    s_k: int
    topk: int
    page_size: int
    page_stride: int | None = None
    first_page: int = 0

    def __str__(self) -> str:
        stride = f"/{self.page_stride}" if self.page_stride else ""
        first = f"+{self.first_page}" if self.first_page else ""
        return f"{self.s_k}.{self.topk}.{self.page_size}{stride}{first}"


@dataclass(frozen=True, kw_only=True)
class DecodeCase:
    """One call. The id of a case names every field that is not the default."""

    b: int
    main: Scope
    extra: Scope | None = None
    extra_layout: KvLayout = V41_FP4
    s_q: int = 1
    heads: int = 64
    sink: bool = True
    length: bool = False
    varlen: bool = True
    all_invalid: bool = False
    zero_length: bool = False  # a third of the requests have no token at all
    repeated_rows: bool = False  # DSpark: the five rows of a request list the same slots
    wide_keys: bool = False
    shuffled_pages: bool = True

    @property
    def id(self) -> str:
        shown = [f"b={self.b}", f"main={self.main}"]
        if self.extra is not None:
            shown.append(f"extra={self.extra}.{self.extra_layout}")
        skip = ("b", "main", "extra", "extra_layout")
        shown += [
            f"{f.name}={getattr(self, f.name)}"
            for f in fields(self)
            if f.name not in skip and getattr(self, f.name) != f.default
        ]
        return "-".join(shown)

    tolerance_prefix = "mla_decode"


@dataclass(frozen=True, kw_only=True)
class DecodeInputs:
    """Arguments of one call, on one device; pass `kwargs()` after q, k_cache, indices."""

    q: torch.Tensor
    k_cache: torch.Tensor
    indices: torch.Tensor
    sm_scale: float
    layout: KvLayout
    attn_sink: torch.Tensor | None
    topk_length: torch.Tensor | None
    extra_k_cache: torch.Tensor | None = None
    extra_layout: KvLayout | None = None
    extra_indices: torch.Tensor | None = None
    extra_topk_length: torch.Tensor | None = None

    def kwargs(self) -> dict[str, Any]:
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("q", "k_cache", "indices")
        }


def make_decode(case: DecodeCase, device: torch.device | str = "cpu") -> DecodeInputs:
    """Build the tensors of a case, the same ones every time; every unlisted byte is poison."""
    rng = generator_for(f"mla_decode {case.id}", device)
    shape = (case.b, case.s_q, case.heads, 512)
    q = torch.randn(shape, generator=rng, device=device).clamp_(-1, 1).to(torch.bfloat16)
    k_cache, indices, length = _make_scope(case, case.main, V41_FP8, rng)
    extra_cache = extra_indices = extra_length = None
    if case.extra is not None:
        made = _make_scope(case, case.extra, case.extra_layout, rng)
        extra_cache, extra_indices, extra_length = made
    return DecodeInputs(
        q=q,
        k_cache=k_cache,
        indices=indices,
        sm_scale=512**-0.5 if case.wide_keys else 512**-0.55,
        layout=V41_FP8,
        attn_sink=make_sinks(case.heads, rng) if case.sink else None,
        topk_length=length,
        extra_k_cache=extra_cache,
        extra_layout=case.extra_layout if case.extra is not None else None,
        extra_indices=extra_indices,
        extra_topk_length=extra_length,
    )


def empty_cache(
    num_pages: int,
    page_size: int,
    layout: KvLayout,
    page_stride: int | None = None,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Return uint8 (num_pages, page_size, 1, bytes) full of poison, gaps between pages too."""
    width = layout.bytes_per_token
    stride = page_stride or page_size * width
    assert stride >= page_size * width, f"page stride {stride} < {page_size} x {width}"
    memory = torch.full((num_pages * stride,), POISON, dtype=torch.uint8, device=device)
    return memory.as_strided((num_pages, page_size, 1, width), (stride, width, width, 1))


def _make_scope(
    case: DecodeCase, scope: Scope, layout: KvLayout, rng: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    device, b, size = rng.device, case.b, scope.page_size
    pages_each = -(-scope.s_k // size)
    num_pages = scope.first_page + b * pages_each + 1
    cache = empty_cache(num_pages, size, layout, scope.page_stride, device)
    order = torch.arange(b * pages_each, device=device)
    if case.shuffled_pages:
        order = torch.randperm(b * pages_each, generator=rng, device=device)
    table = (scope.first_page + order).view(b, pages_each)
    lengths = torch.full((b,), scope.s_k, device=device)
    if case.varlen:
        lengths = torch.randint(1, scope.s_k + 1, (b,), generator=rng, device=device)
    if case.zero_length:
        lengths[::3] = 0
    distinct_rows = 1 if case.repeated_rows else case.s_q
    rows = distinct_indices(
        b * distinct_rows, scope.topk, lengths.repeat_interleave(distinct_rows), rng
    )
    token = rows.view(b, distinct_rows, scope.topk).expand(b, case.s_q, scope.topk)
    if case.all_invalid:
        token = torch.full_like(token, -1)
    page = table.gather(1, (token.clamp_min(0) // size).long().flatten(1)).view_as(token)
    slots = torch.where(token >= 0, page * size + token % size, -1).to(torch.int32)
    used = slots.unique()
    used = used[used >= 0]
    for start in range(0, used.numel(), 1 << 18):
        part = used[start : start + (1 << 18)]
        kv = torch.randn((part.numel(), 512), generator=rng, device=device)
        kv *= 1.0 if case.wide_keys else 0.1
        write_kv(cache, part, kv.to(torch.bfloat16), layout)
    length = None
    if case.length:
        length = torch.randint(0, scope.topk + 1, (b,), generator=rng, device=device)
        length = length.to(torch.int32)
    return cache, slots.contiguous(), length


_MAIN = [
    Scope(s_k=512, topk=64, page_size=5),
    Scope(s_k=512, topk=64, page_size=69),
    Scope(s_k=1024, topk=576, page_size=2),
    Scope(s_k=1024, topk=576, page_size=61),
    Scope(s_k=2046, topk=2048, page_size=1),
    Scope(s_k=2046, topk=2048, page_size=64),
    Scope(s_k=2046, topk=2048, page_size=576),
]
_EXTRA = [
    Scope(s_k=512, topk=64, page_size=5),
    Scope(s_k=512, topk=64, page_size=69),
    Scope(s_k=1024, topk=576, page_size=2),
    Scope(s_k=1024, topk=576, page_size=123),
    Scope(s_k=2046, topk=2048, page_size=1),
    Scope(s_k=2046, topk=2048, page_size=576),
]


def upstream_cases() -> Iterator[DecodeCase]:
    """FlashMLA's recipes 1 to 3. By default each pair of scopes once per layout; all with
    H20_OPS_FULL_SWEEP=1."""
    sizes = list(itertools.product((64, 128), (4, 74, 321), (1, 3)))
    pairs: list[tuple[Scope, Scope | None, KvLayout]] = []
    pairs += [(main, None, V41_FP8) for main in _MAIN]
    pairs += [(m, e, kind) for kind in (V41_FP8, V41_FP4) for m in _MAIN for e in _EXTRA]
    for number, (main, extra, kind) in enumerate(pairs):
        chosen = sizes if full_sweep() else [sizes[number * 5 % len(sizes)]]
        for heads, b, s_q in chosen:
            yield DecodeCase(
                b=b,
                main=main,
                extra=extra,
                extra_layout=kind,
                s_q=s_q,
                heads=heads,
                length=number % 2 == 1,
                sink=number % 3 != 0,
                varlen=b != 74,
            )
    scopes = (Scope(s_k=512, topk=64, page_size=61), Scope(s_k=650, topk=576, page_size=53))
    flags = list(itertools.product((False, True), repeat=3))[1:]
    for number, (main, extra, b) in enumerate(itertools.product(scopes, scopes, (1, 74, 321))):
        for all_invalid, zero_length, sink in flags if full_sweep() else flags[number % 7 :: 3]:
            yield DecodeCase(
                b=b,
                main=main,
                extra=extra,
                s_q=3,
                all_invalid=all_invalid,
                zero_length=zero_length,
                sink=sink,
            )
    for kind in (V41_FP8, V41_FP4):
        yield DecodeCase(
            b=5,
            main=Scope(s_k=512, topk=128, page_size=64),
            extra=Scope(s_k=512, topk=100, page_size=64),
            extra_layout=kind,
            heads=128,
        )


WINDOW_STRIDE = 134 * 528 + 1056  # a ring of 134 entries and padding behind it


def own_cases() -> Iterator[DecodeCase]:
    """The engine's rings, strides and widths, and what breaks addressing."""
    ring = Scope(s_k=134, topk=128, page_size=134, page_stride=WINDOW_STRIDE)
    pages = {
        "ratio 1": Scope(s_k=1500, topk=512, page_size=128, page_stride=114_048),
        "ratio 2": Scope(s_k=1500, topk=512, page_size=64, page_stride=114_048),
        "one layer fewer": Scope(s_k=1500, topk=512, page_size=128, page_stride=134_784),
    }
    for b in (1, 8, 33, 256):
        for extra in pages.values():
            yield DecodeCase(b=b, main=ring, extra=extra, wide_keys=True)
    yield DecodeCase(b=8, main=ring)
    draft = Scope(s_k=133, topk=192, page_size=134, page_stride=WINDOW_STRIDE)
    yield DecodeCase(b=7, s_q=5, main=draft, repeated_rows=True, varlen=False)
    fp8_row = Scope(s_k=1500, topk=512, page_size=128, page_stride=384 * 528)
    yield DecodeCase(b=9, main=ring, extra=fp8_row, extra_layout=V41_FP8, wide_keys=True)
    for page_size in (129, 133, 1, 3, 127):
        yield DecodeCase(b=6, main=Scope(s_k=300, topk=257, page_size=page_size), wide_keys=True)
    for topk, extra_topk in ((1, 1), (63, 65), (128, 7), (31, 512)):
        yield DecodeCase(
            b=3,
            main=Scope(s_k=600, topk=topk, page_size=134),
            extra=Scope(s_k=600, topk=extra_topk, page_size=64),
            wide_keys=True,
        )
    for heads in (64, 128, 192):
        yield DecodeCase(b=2, main=ring, extra=pages["ratio 2"], heads=heads)


def far_cases() -> Iterator[DecodeCase]:
    """Slots beyond 2^31 bytes from the cache's start (3 GB and 2.3 GB): for a GPU, not for CI."""
    far_ring = Scope(s_k=134, topk=128, page_size=134, page_stride=3_128_928, first_page=690)
    far_page = Scope(s_k=1500, topk=512, page_size=128, page_stride=114_048, first_page=18_900)
    yield DecodeCase(b=300, main=far_ring, wide_keys=True)
    yield DecodeCase(b=4, main=far_ring, extra=far_page, wide_keys=True)


def speed_cases() -> Iterator[DecodeCase]:
    """Shapes with a number to reach: 1024 keys of 528 bytes, and the model's own 128 + 512."""
    for b in (1, 8, 64, 128):
        main = Scope(s_k=4096, topk=1024, page_size=64)
        yield DecodeCase(b=b, main=main, varlen=False)
    ring = Scope(s_k=128, topk=128, page_size=134, page_stride=WINDOW_STRIDE)
    extra = Scope(s_k=4096, topk=512, page_size=128, page_stride=114_048)
    for b in (1, 8, 32, 64, 128, 256, 512):
        yield DecodeCase(b=b, main=ring, extra=extra, varlen=False)
