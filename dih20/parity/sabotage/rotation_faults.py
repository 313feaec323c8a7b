"""Faults in rotations: half-split pairs, positions of compressed entries, the inverse."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch

from dih20.parity.sabotage.attention_faults import BrokenSite, replaced, with_site
from dih20.parity.sabotage.base import Base
from dih20.parity.sabotage.fault import BOTH, Fault, Injector, any_phases
from v41.attention_site import AttentionSite
from v41.cache import Rows
from v41.config import ModelConfig
from v41.rope import Rope

Rotation = Callable[[Rope, torch.Tensor, torch.Tensor, bool], torch.Tensor]


class LabelledRope(Rope):
    """A rotation that knows what it is used for, and turns one use wrongly."""

    def __init__(self, config: ModelConfig, compressed: bool, use: str, wrong: Rotation) -> None:
        super().__init__(config, compressed=compressed)
        self.use, self.wrong = use, wrong
        self.current: list[str] = []
        self.healthy = Rope(config, compressed=compressed)

    def rotate(
        self, x: torch.Tensor, positions: torch.Tensor, *, inverse: bool = False
    ) -> torch.Tensor:
        use = "context_unrotated" if inverse else self.current.pop(0)
        if use == self.use:
            return self.wrong(self.healthy, x, positions, inverse)
        return self.healthy.rotate(x, positions, inverse=inverse)


class RotatedSite(BrokenSite):
    """An attention site that labels its rotations; `use` of them goes wrong."""

    use = ""
    wrong: Rotation

    def broken(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
        rope = LabelledRope(self.config, self.kind.ratio > 0, self.use, type(self).wrong)
        rope.current = ["q", "window_kv"]
        if self.kind.owns_kv:
            rope.current += ["compressed_kv", "index_key"]
        if self.kind.owns_index:
            rope.current += ["index_query"]
        with replaced(self, "_rope", rope):
            return AttentionSite.__call__(self, x, rows)


def _rotation_fault(
    cause: str, detail: str, use: str, kinds: tuple[str, ...], rotation: Rotation
) -> Injector:
    def inject(base: Base, random: Random) -> Fault:
        layer = random.choice(base.layers(*kinds))
        chosen = any_phases(random)
        # A ratio-2 entry is complete only at every other token: in decode it may not come at all.
        phases = BOTH if use in ("compressed_kv", "index_key") else chosen

        class Site(RotatedSite):
            pass

        Site.use, Site.wrong, Site.phases = use, staticmethod(rotation), phases
        return Fault(
            cause=cause, site=f"layers.{layer}.attn.{use}", phases=phases, detail=detail,
            build=with_site(base, layer, Site),
        )  # fmt: skip

    return inject


def _neox(rope: Rope, x: torch.Tensor, positions: torch.Tensor, inverse: bool) -> torch.Tensor:
    """Rotate (x[i], x[i + n/2]) by the angle of pair i."""
    half = rope.rotary_dim // 2
    angles = positions.double().unsqueeze(-1) * rope._frequencies * (-1.0 if inverse else 1.0)
    cos, sin = angles.cos().float(), angles.sin().float()
    if x.dim() == 4:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    out = x.clone()
    low, high = x[..., -2 * half : -half], x[..., -half:]
    out[..., -2 * half : -half] = low * cos - high * sin
    out[..., -half:] = high * cos + low * sin
    return out


_ANY = ("window", "full", "reindex", "reuse")
_OWNS_INDEX = ("full", "reindex")
HALF_SPLIT_Q = _rotation_fault("rope-half-split", "queries in half-split pairs", "q", _ANY, _neox)
HALF_SPLIT_WINDOW = _rotation_fault(
    "rope-half-split", "window entries in half-split pairs", "window_kv", _ANY, _neox
)
HALF_SPLIT_INDEX_KEY = _rotation_fault(
    "rope-half-split", "index keys in half-split pairs", "index_key", ("full",), _neox
)
HALF_SPLIT_INDEX_QUERY = _rotation_fault(
    "rope-half-split", "index queries in half-split pairs", "index_query", _OWNS_INDEX, _neox
)
POSITION_OF_GROUP_NUMBER = _rotation_fault(
    "rope-compressed-position", "ratio-2 entry j turns by j", "compressed_kv", ("full-r2",),
    lambda rope, x, positions, _: rope.rotate(x, positions // 2),
)  # fmt: skip
POSITION_OF_LAST_TOKEN = _rotation_fault(
    "rope-compressed-position", "ratio-2 index key turns by its group's last token", "index_key",
    ("full-r2",), lambda rope, x, positions, _: rope.rotate(x, positions + 1),
)  # fmt: skip
INVERSE_MISSING = _rotation_fault(
    "inverse-rope-missing", "the output is not turned back", "context_unrotated", _ANY,
    lambda rope, x, positions, _: x,
)  # fmt: skip
INVERSE_TWICE = _rotation_fault(
    "inverse-rope-twice", "the output is turned back twice", "context_unrotated", _ANY,
    lambda rope, x, positions, _: rope.rotate(x, 2 * positions, inverse=True),
)  # fmt: skip
INVERSE_FORWARD = _rotation_fault(
    "inverse-rope-forward", "the output is turned forwards", "context_unrotated", _ANY,
    lambda rope, x, positions, _: rope.rotate(x, positions),
)  # fmt: skip


def other_base(base: Base, random: Random) -> Fault:
    """Turn a compressed layer's queries as a window layer does: its base, and no YaRN."""
    plain = Rope(base.oracle.config, compressed=False)
    inject = _rotation_fault(
        "rope-base",
        "queries of a compressed layer with a window layer's frequencies",
        "q",
        ("full", "reindex", "reuse"),
        lambda rope, x, positions, _: plain.rotate(x, positions),
    )
    return inject(base, random)
