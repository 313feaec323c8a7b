"""The inputs of a finding's site as run B had them: this step's, and what earlier steps left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dih20.parity.diagnosis.hypothesis import InputMissing
from v41.config import LayerKind, ModelConfig
from v41.numerics import Numerics, rms_norm
from v41.rope import Rope

if TYPE_CHECKING:
    from dih20.parity.evidence import Evidence


class Inputs:
    """Tensors of run B around one finding, fp32, with the clean weights beside them.

    Example:
        inputs = Inputs(evidence)
        inputs.here("q_low")              # layers.3.attn.q_low of this step
        inputs.history(2, "compressed_kv")  # every entry that layer 2 has stored up to this step
    """

    def __init__(self, evidence: Evidence) -> None:
        finding = evidence.finding
        self.evidence, self.finding = evidence, finding
        self.config: ModelConfig = evidence.config
        self.step, self.site = finding.step, finding.site
        self.prefix, self.leaf = self.site.rsplit(".", 1) if "." in self.site else ("", self.site)
        self.layer = finding.layer

    @property
    def kind(self) -> LayerKind:
        assert self.layer is not None, f"{self.site} lies in no layer"
        return self.config.layer(self.layer)

    @property
    def numerics(self) -> Numerics:
        if self.evidence.oracle is None:
            raise InputMissing("no oracle: the numeric mode of the reference is unknown")
        return Numerics.of(self.evidence.oracle.mode)

    def weight(self, name: str) -> torch.Tensor:
        """Give a clean weight by its whole released name."""
        if self.evidence.oracle is None or name not in self.evidence.oracle.weights:
            raise InputMissing(f"no weight {name}")
        return self.evidence.oracle.weights[name]

    def at(self, site: str, step: int | None = None) -> torch.Tensor:
        """Give B's tensor of a whole site name."""
        tensor = self.evidence.b(site, self.step if step is None else step)
        if tensor is None:
            raise InputMissing(f"B has no {site}")
        return tensor.float() if tensor.is_floating_point() else tensor

    def here(self, leaf: str) -> torch.Tensor:
        """Give B's tensor of a site beside the finding's."""
        return self.at(f"{self.prefix}.{leaf}")

    def history(self, layer: int, leaf: str) -> torch.Tensor:
        """Give what a layer's attention has produced up to this step, along the token dimension."""
        site = f"layers.{layer}.attn.{leaf}"
        return torch.cat([self.at(site, step) for step in range(self.step + 1)], dim=1)

    def count_before(self, leaf: str) -> int:
        """Give how many entries of a site beside the finding's earlier steps have made."""
        site = f"{self.prefix}.{leaf}"
        return sum(self.at(site, step).shape[1] for step in range(self.step))

    @property
    def positions(self) -> torch.Tensor:
        """Give this step's positions, int64 (rows,)."""
        return self.evidence.positions(self.step)

    @property
    def rope(self) -> Rope:
        return Rope(self.config, compressed=self.kind.ratio > 0)

    @property
    def other_rope(self) -> Rope:
        """Give the rotation of the other kind of layer."""
        return Rope(self.config, compressed=self.kind.ratio == 0)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, self.weight(name), self.config.rms_norm_eps, self.numerics)

    def streams_before(self) -> torch.Tensor:
        """Give the streams that enter this finding's part of the layer."""
        assert self.layer is not None, self.site
        part = self.site.split(".")[2]
        if part == "ffn":
            return self.at(f"layers.{self.layer}.attn.streams")
        if part == "attn" and self.kind.engram:
            return self.at(f"layers.{self.layer}.engram.streams")
        if self.layer:
            return self.at(f"layers.{self.layer - 1}.ffn.streams")
        return self.at("embed").unsqueeze(2).expand(-1, -1, self.config.hc_mult, -1)
