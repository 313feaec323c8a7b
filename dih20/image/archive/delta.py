"""Decide what an archive must hold, from what the receiver has: pure values, no engine."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from dih20.image.archive.layers import ImageLayers, StoreKind


@dataclass(frozen=True, kw_only=True)
class Delta:
    """What to send. `verbatim` means the engine's own stream, complete, for a store that wants it so."""

    layers: ImageLayers
    send: tuple[str, ...]  # diff ids, the base first
    skip: tuple[str, ...]
    verbatim: bool
    why: str

    @property
    def is_empty(self) -> bool:
        """Tell whether only the image's configuration would travel."""
        return not self.send


def make_delta(
    layers: ImageLayers,
    held: Set[str],
    *,
    sender: StoreKind = "graphdriver",
    receiver: StoreKind = "graphdriver",
) -> Delta:
    """Give the layers to send: those whose chain the receiver does not hold.

    The same tar may stand at two places of an image; it is sent when either place is missing.
    """
    stores = {"the sender": sender, "the receiver": receiver}
    containerd = [who for who, kind in stores.items() if kind == "containerd"]
    if containerd:
        why = f"{' and '.join(containerd)} keeps images in containerd, which takes only complete archives"
        return Delta(layers=layers, send=_once(layers.diff_ids), skip=(), verbatim=True, why=why)
    missing = [
        diff
        for diff, chain in zip(layers.diff_ids, layers.chain_ids, strict=True)
        if chain not in held
    ]
    send = _once(tuple(missing))
    skip = tuple(diff for diff in _once(layers.diff_ids) if diff not in send)
    why = f"the receiver holds {len(skip)} of {len(skip) + len(send)} layers"
    return Delta(layers=layers, send=send, skip=skip, verbatim=False, why=why)


def _once(diff_ids: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(diff_ids))
