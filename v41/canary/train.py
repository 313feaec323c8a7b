"""Train the canary: python -m v41.canary.train OUT.

The start is v41.canary.circuit, which already looks facts up; training teaches the fixed questions
to the routed experts, Engram, hyper-connections, head and layer 2, next to facts, under the roundings
of mode "trained" and of the checkpoint's formats. The same machine and number of threads
give the same bits.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from v41.canary.batched import TrainingModel
from v41.canary.batches import Batch, BatchMaker, Layout
from v41.canary.circuit import train_mask
from v41.canary.initial import initial_weights
from v41.canary.shape import config_json
from v41.canary.stacked import (
    Weights,
    rounded_weights,
    stack_experts,
    storages,
    unstack_experts,
)
from v41.canary.tokenizer import Tokenizer
from v41.canary.write import write_canary
from v41.config import ModelConfig
from v41.engram_vocab import compressed_ids

SEED = 20251129
LAYOUT = Layout(length=34, fact_units=2, facts=1, ask_units=2, asked=1)
_BETAS, _EPSILON, _CLIP = (0.9, 0.98), 1e-9, 1.0
_BIAS_STEP = 1e-3
_WARM_UP = 10


class Adam:
    """Adam over the weights that training may change, each under its mask."""

    def __init__(self, weights: Weights) -> None:
        masks = {name: train_mask(name, weight) for name, weight in weights.items()}
        self.names = [name for name, mask in masks.items() if mask is not None]
        self.params = [weights[name] for name in self.names]
        self._masks = [mask for mask in masks.values() if mask is not None]
        self._first = [torch.zeros_like(p) for p in self.params]
        self._second = [torch.zeros_like(p) for p in self.params]
        self._steps = 0

    def step(self, grads: list[torch.Tensor], rate: float) -> None:
        """Mask, clip and apply."""
        with torch.no_grad():
            self._apply(grads, rate)

    def _apply(self, grads: list[torch.Tensor], rate: float) -> None:
        grads = torch._foreach_mul(grads, self._masks)
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        torch._foreach_mul_(grads, float((_CLIP / (norm + 1e-6)).clamp_max(1.0)))
        self._steps += 1
        torch._foreach_lerp_(self._first, grads, 1 - _BETAS[0])
        torch._foreach_mul_(self._second, _BETAS[1])
        torch._foreach_addcmul_(self._second, grads, grads, 1 - _BETAS[1])
        root = torch._foreach_sqrt(self._second)
        torch._foreach_add_(root, _EPSILON)
        unbias = math.sqrt(1 - _BETAS[1] ** self._steps) / (1 - _BETAS[0] ** self._steps)
        torch._foreach_addcdiv_(self.params, self._first, root, -rate * unbias)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Means over a batch's answers, fixed questions and facts apart."""

    fixed_loss: float
    asked_loss: float
    fixed_right: float
    asked_right: float

    def __str__(self) -> str:
        fixed = f"fixed {self.fixed_loss:.3f} ({self.fixed_right:.0%})"
        return f"{fixed}  facts {self.asked_loss:.3f} ({self.asked_right:.0%})"


class Trainer:
    """Holds the weights and does one step at a time."""

    def __init__(self, config: ModelConfig, start: Weights) -> None:
        self.config = config
        self.weights = stack_experts(config, start)
        assert self.weights.keys() == storages(config).keys()
        self.adam = Adam(self.weights)
        for param in self.adam.params:
            param.requires_grad_(True)
        tokenizer = Tokenizer.build()
        texts = [tokenizer.decode([token]) for token in range(config.vocab_size)]
        self._compressed = compressed_ids(texts, tokenizer.names)
        kept = {n: w for n, w in self.weights.items() if n not in self.adam.names}
        biases = (".gate.bias", ".gate.bias_vl")  # these move, without gradients
        self._kept = rounded_weights(
            config, {n: w for n, w in kept.items() if not n.endswith(biases)}
        )

    def step(self, batch: Batch, rate: float) -> Progress:
        """Train on one batch."""
        moving = {n: w for n, w in self.weights.items() if n not in self._kept}
        weights = self._kept | rounded_weights(self.config, moving)
        model = TrainingModel(self.config, weights, compressed_ids=self._compressed)
        logits = model.logits(batch.tokens)
        each = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), reduction="none"
        ).view_as(batch.fixed)
        right = (logits.argmax(-1) == batch.targets).float()
        fixed, asked = _mean(each, batch.fixed), _mean(each, batch.asked)
        grads = torch.autograd.grad(fixed + asked, self.adam.params)
        self.adam.step(list(grads), rate)
        for layer, load in enumerate(model.loads):
            bias = self.weights[f"layers.{layer}.ffn.gate.bias"]
            bias += _BIAS_STEP * (load.mean() - load).sign()
        return Progress(
            fixed_loss=float(fixed.detach()),
            asked_loss=float(asked.detach()),
            fixed_right=float(_mean(right, batch.fixed)),
            asked_right=float(_mean(right, batch.asked)),
        )

    def released(self) -> Weights:
        """Give the weights under their released names."""
        return unstack_experts({n: tensor.detach().clone() for n, tensor in self.weights.items()})


def _mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (values * mask).sum() / mask.sum().clamp_min(1)


def rate_at(step: int, steps: int, peak: float) -> float:
    """Rise for a few steps, then fall along a cosine to a fiftieth."""
    fall = 0.5 * (1 + math.cos(math.pi * step / steps))
    return peak * min(1.0, (step + 1) / _WARM_UP) * max(fall, 0.02)


def train(config: ModelConfig, *, steps: int, rows: int, peak: float, save: Path | None) -> Weights:
    """Train for a number of steps; writes `save` every 50 of them and at the end."""
    trainer = Trainer(config, initial_weights(config, SEED))
    maker = BatchMaker("cpu", SEED)
    begin = time.monotonic()
    for step in range(steps):
        progress = trainer.step(maker.draw(rows, LAYOUT), rate_at(step, steps, peak))
        if step % 5 == 4:
            print(f"{time.monotonic() - begin:6.0f} s  step {step + 1}: {progress}", flush=True)
        if save and (step % 50 == 49 or step + 1 == steps):
            write_canary(save, trainer.released())
    return trainer.released()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train the canary.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    config = ModelConfig.from_hf(config_json())
    train(config, steps=given.steps, rows=given.rows, peak=given.rate, save=given.out)


if __name__ == "__main__":
    main()
