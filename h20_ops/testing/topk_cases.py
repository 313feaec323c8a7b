"""Rows for top-k, shared by its tests and its benchmark: shapes, and values that are hard on a selection."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from h20_ops.testing.seeds import generator_for

KINDS = (
    "normal",
    "logits",  # an indexer's: around 20, three fifths of one power of two
    "few values",
    "two values",
    "equal",
    "-inf",
    "inf mix",
    "zeros",  # of both signs
    "denormal",
    "ascending",
    "descending",
    "nan",
)


@dataclass(frozen=True, kw_only=True)
class TopkCase:
    """One call. `shift` elements of storage stand before the first row, `pad` between rows."""

    rows: int
    columns: int
    k: int
    kind: str = "normal"
    dtype: torch.dtype = torch.float32
    ends: bool = False  # rows end anywhere, also at 0, around k and at the last column
    sorted: bool = False
    shift: int = 0
    pad: int = 0

    @property
    def id(self) -> str:
        parts = [f"{self.rows}x{self.columns}", f"k{self.k}", self.kind.replace(" ", "-")]
        parts += ["bf16" if self.dtype == torch.bfloat16 else "fp32"]
        parts += [name for name in ("ends", "sorted") if getattr(self, name)]
        parts += [f"shift{self.shift}pad{self.pad}"] if self.shift or self.pad else []
        return "-".join(parts)


def make_rows(case: TopkCase, device: torch.device | str = "cpu") -> torch.Tensor:
    """(rows, columns) of the case's dtype; what lies around the rows in memory is NaN."""
    stride = case.columns + case.pad
    size = case.shift + case.rows * stride + 8
    storage = torch.full((size,), torch.nan, dtype=case.dtype, device=device)
    rows = storage[case.shift :].as_strided((case.rows, case.columns), (stride, 1), case.shift)
    rows.copy_(make_values(case.kind, case.rows, case.columns, device))
    return rows


def make_values(kind: str, rows: int, columns: int, device: torch.device | str) -> torch.Tensor:
    """fp32 (rows, columns) of one of KINDS."""
    rng = generator_for(f"topk {kind} {rows} {columns}", device)
    shape = (rows, columns)

    def normal() -> torch.Tensor:
        return torch.randn(shape, generator=rng, device=device)

    def chance() -> torch.Tensor:
        return torch.rand(shape, generator=rng, device=device)

    ramp = torch.arange(columns, device=device, dtype=torch.float32).expand(shape)
    if kind == "normal":
        return normal()
    if kind == "logits":
        return normal() * 0.7 + 20.0
    if kind == "few values":
        return (normal() * 2).round() * 0.25
    if kind == "two values":
        return torch.where(chance() < 0.01, 1.0, -2.0)
    if kind == "equal":
        return torch.full(shape, -3.25, device=device)
    if kind == "-inf":
        return torch.full(shape, -torch.inf, device=device)
    if kind == "inf mix":
        values, draw = normal(), chance()
        values[draw < 0.3] = -torch.inf
        values[draw > 0.999] = torch.inf
        return values
    if kind == "zeros":
        return torch.where(chance() < 0.5, 0.0, -0.0)
    if kind == "denormal":
        return normal() * 2.0**-140
    if kind == "ascending":
        return ramp * 0.5 - 100.0
    if kind == "descending":
        return 100.0 - ramp * 0.5
    assert kind == "nan", f"kind {kind!r}, known: {', '.join(KINDS)}"
    values, draw = normal(), chance()
    values[draw < 0.01] = torch.nan
    values[draw > 0.999] = -torch.nan
    values[::3, : columns // 2] = torch.nan
    return values


def make_ends(case: TopkCase, device: torch.device | str = "cpu") -> torch.Tensor | None:
    """int32 (rows,), or None: the edges first, then anything."""
    if not case.ends:
        return None
    rng = generator_for(f"topk ends {case.id}")
    ends = torch.randint(0, case.columns + 1, (case.rows,), generator=rng)
    edges = [case.columns, case.k, 0, case.k + 1, case.k - 1, case.columns - 1, 1, case.k // 2]
    count = min(case.rows, len(edges))
    ends[:count] = torch.tensor(edges[:count]).clamp(0, case.columns)
    return ends.to(device=device, dtype=torch.int32)


def cases() -> list[TopkCase]:
    """Every kind of values in every form of the kernel, shapes of the engine, and edges."""
    found: list[TopkCase] = []
    for dtype in (torch.float32, torch.bfloat16):
        for kind in KINDS:
            for rows, columns, k in (
                (3, 20_000, 512),
                (300, 9_000, 512),
                (2, 70_001, 2048),
                (2, 50_000, 4096),
            ):
                case = TopkCase(rows=rows, columns=columns, k=k, kind=kind, dtype=dtype)
                found.append(case)
            found.append(TopkCase(rows=9, columns=30_000, k=600, kind=kind, dtype=dtype, ends=True))
            found.append(
                TopkCase(rows=5, columns=30_000, k=600, kind=kind, dtype=dtype, sorted=True)
            )
        for rows, columns, k in SHAPES:
            found.append(TopkCase(rows=rows, columns=columns, k=k, dtype=dtype, kind="logits"))
            found.append(TopkCase(rows=rows, columns=columns, k=k, dtype=dtype, ends=True))
            short = min(rows, 64)
            case = TopkCase(rows=short, columns=columns, k=k, dtype=dtype, sorted=True, ends=True)
            found.append(case)
        for shift in range(1, 8):
            for pad in (0, 3):
                case = TopkCase(rows=7, columns=9_001, k=300, dtype=dtype, shift=shift, pad=pad)
                found += [case, TopkCase(**{**vars(case), "ends": True})]
        for columns in (1, 2, 7, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8193):
            found.append(TopkCase(rows=5, columns=columns, k=512, dtype=dtype, pad=1))
            found.append(TopkCase(rows=5, columns=columns, k=512, dtype=dtype, sorted=True))
    return found


# rows, columns, k: the engine's calls, and the widest rows.
SHAPES = (
    (4096, 32_768, 512),
    (700, 16_384, 512),
    (1000, 16_384, 2048),
    (8, 131_072, 512),
    (64, 131_072, 512),
    (1, 1 << 20, 512),
    (4, 129_280, 1000),
    (33, 129_280, 4096),
    (3, (1 << 19) + 5, 512),
    (2, 1 << 23, 512),
)


def mislead(rows: torch.Tensor, threads: int, blocks: int) -> None:
    """Raise what the kernel samples of every second row, so that its guess leaves out too much.

    Args:
        rows: (rows, columns), each starting at a multiple of 16 bytes; all columns count.
        threads, blocks: of the kernel that will read them.
    """
    per_vector = 16 // rows.element_size()
    vectors = -(-rows.shape[1] // per_vector)
    each = -(-vectors // blocks)
    each = -(-each // 8) * 8
    for first in range(0, vectors, each):
        stride = (min(first + each, vectors) - first - 2) // threads
        assert stride >= 4, f"{rows.shape[1]} columns: slices too short to be sampled"
        stride = (stride - 1) | 1
        start = (first + 1) * per_vector
        for i in range(per_vector):
            stop = start + threads * stride * per_vector
            rows[::2, start + i : stop : stride * per_vector] += 10
