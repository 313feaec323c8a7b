"""Write an image's configuration with nothing of the build in it: no time, no container, no host name.

What the base says of its own making stays; each of our layers is one line with its step's name.
An image's id is the hash of these bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dih20.source_date import source_date

_KEPT = (
    "User", "ExposedPorts", "Env", "Entrypoint", "Cmd", "Volumes", "WorkingDir", "Labels",
    "StopSignal", "Healthcheck", "Shell",
)  # fmt: skip

NO_LAYER = "no layer"


@dataclass(frozen=True, kw_only=True)
class ImageFrame:
    """All of an image but its layers: where it can run, what it runs, how its base was made."""

    architecture: str
    os: str
    config: Mapping[str, Any]
    base_history: tuple[Mapping[str, Any], ...]
    variant: str = ""
    steps: tuple[str, ...] = field(default=())  # the name of each own layer, the lowest first

    def config_bytes(self, base: Sequence[str], own: Sequence[str]) -> bytes:
        """Give the configuration over the base's diff ids and our own; "" is a step without a layer."""
        assert len(own) == len(self.steps), f"{len(own)} layers for {len(self.steps)} steps"
        created = source_date().strftime("%Y-%m-%dT%H:%M:%SZ")
        history: list[dict[str, Any]] = [dict(entry) for entry in self.base_history]
        for name, diff_id in zip(self.steps, own, strict=True):
            entry: dict[str, Any] = {"created": created, "created_by": f"dih20 step {name}"}
            # An engine's own account of the history does not tell empty layers, so the comment does.
            history.append(
                entry if diff_id else {**entry, "comment": NO_LAYER, "empty_layer": True}
            )
        written: dict[str, Any] = {
            "architecture": self.architecture,
            "os": self.os,
            "created": created,
            "config": {name: self.config[name] for name in _KEPT if self.config.get(name)},
            "history": history,
            "rootfs": {"type": "layers", "diff_ids": [*base, *(d for d in own if d)]},
        }
        if self.variant:
            written["variant"] = self.variant
        return json.dumps(written, sort_keys=True, separators=(",", ":")).encode()


def image_id(config: bytes) -> str:
    """Give the id that an engine gives the image."""
    return "sha256:" + hashlib.sha256(config).hexdigest()
