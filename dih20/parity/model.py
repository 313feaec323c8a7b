"""The values that dumping, comparing, diagnosing and reporting hand to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Phase = Literal["prefill", "decode"]
DataClass = Literal["synthetic", "canary", "real"]
SiteKind = Literal["dense", "quantised", "scores", "selection", "expert_ids", "integer"]
Merge = Literal["replicated", "concat", "sum"]
Origin = Literal["fresh", "rounding", "inherited", "unknown"]
Outcome = Literal["ok", "diverged", "incomplete"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place in the model where a tensor has a name, e.g. "layers.3.attn.window_kv".

    kind: how two tensors of this site are compared.
    rule: for kind "quantised", the name of its rule in h20_ops.formats.GROUP_RULES.
    order: place in the causal order of one forward pass.
    """

    name: str
    layer: int | None
    part: str  # "attn", "ffn", "engram"; "" for embed, final_norm and logits
    leaf: str
    kind: SiteKind
    order: int
    rule: str | None = None


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What is known of a tensor without reading it; computed in fp32 over all elements.

    digest: of the bytes; equal digests mean equal tensors.
    nan, inf: how many; minimum, maximum, mean and rms are over the finite elements.
    """

    count: int
    nan: int
    inf: int
    minimum: float
    maximum: float
    mean: float
    rms: float
    digest: str

    @property
    def is_constant(self) -> bool:
        return self.minimum == self.maximum


@dataclass(frozen=True, kw_only=True)
class Shard:
    """How one rank's tensor relates to the whole one: a slice of `dim`, a summand, or a copy."""

    merge: Merge = "replicated"
    dim: int = 0
    world: int = 1


@dataclass(frozen=True, kw_only=True)
class TensorRecord:
    """One tensor of one site, step and rank, as the index describes it.

    shape, stride, storage_offset: of the tensor as it was in the run; files hold it contiguous.
    stored: False in a statistics-only dump.
    """

    site: str
    layer: int | None
    layer_kind: str  # v41.config.LayerKind.name, "" outside the layers
    phase: Phase
    step: int
    rank: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    dtype: str  # torch's name without the prefix: "bfloat16"
    stored: bool
    statistics: Statistics
    shard: Shard = field(default_factory=Shard)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a run was; two dumps are comparable when tokens, positions, config and weights agree.

    engine: "reference", "deepinfer", "official"; mode: the numeric mode ("exact", "trained", "sm90").
    config: the text model's configuration as plain values; weights: sha256 over the checkpoint.
    tokens, positions: per step, ids as [sequence][row], and the positions of the rows.
    """

    engine: str
    mode: str
    device: str
    torch: str
    data_class: DataClass
    config: Mapping[str, Any]
    weights: str
    tokens: tuple[tuple[tuple[int, ...], ...], ...]
    positions: tuple[tuple[int, ...], ...]
    world: int = 1

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """Runs that agree in this should give the same bits, apart from the measured noise."""
        return (self.engine, self.mode, self.device, self.torch)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How far a tensor of B is from A's, and where.

    value: the number that is compared with `limit`: normalised difference for dense and quantised
        sites, the share of rows that differ beyond ties for choices.
    details: further numbers of the kind ("max_ulp", "codes_differ", "score_margin", ...).
    coordinate: of the worst or first difference, and the two values there.
    explained: rounding alone, within bounds that are known of this tensor, makes such a value.
    """

    value: float
    limit: float
    floor: float | None = None
    details: Mapping[str, float | int | str] = field(default_factory=dict)
    coordinate: tuple[int, ...] = ()
    a: float | None = None
    b: float | None = None
    estimated: bool = False  # from statistics only
    explained: bool = False

    @property
    def exceeds(self) -> bool:
        return not self.explained and not self.value <= self.limit  # NaN exceeds


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One compared tensor.

    measure: B against A. fresh: B against what the reference computes from B's own inputs, None
    when nothing was replayed. origin: "fresh" if this site added the error, "rounding" if it did
    and rounding explains it, "inherited" if its inputs already had it.
    remark: a sentence in words, e.g. "tie-equivalent: the chosen sets differ in equal scores".
    """

    site: str
    kind: SiteKind
    layer: int | None
    layer_kind: str
    phase: Phase
    step: int
    measure: Measure
    fresh: Measure | None = None
    origin: Origin = "unknown"
    remark: str = ""

    @property
    def diverges(self) -> bool:
        return self.measure.exceeds


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A known cause that a finding looks like.

    name: stable identifier, e.g. "rope-half-split". confidence: 0..1. because: the evidence, a sentence.
    """

    name: str
    title: str
    confidence: float
    because: str


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What the dumps exercised; parity cannot be OK while anything is missing.

    missing: sentences such as "reuse-r1 in decode", "selection beyond top-k".
    not_compared: sites that only one of the dumps has.
    """

    data_class: DataClass
    covered: tuple[str, ...]
    missing: tuple[str, ...]
    not_compared: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome in one line. first: the first finding with fresh error, None when none is."""

    outcome: Outcome
    line: str
    first: Finding | None = None
    looks_like: tuple[Cause, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything `inv parity compare` found; findings are in causal order."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    coverage: Coverage
    a: RunFacts
    b: RunFacts
    floor_measured: bool


def as_plain(value: Any) -> dict[str, Any]:
    """Give a dataclass of this module as plain values for JSON."""
    return asdict(value)
