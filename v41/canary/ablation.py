"""Take one mechanism away at a time and count which answers it decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from v41.canary.answering import Answer, Canary, answer_facts, answer_questions
from v41.canary.facts import FactContext
from v41.indexer import select, visible_entries
from v41.tap import Tap, no_tap

_SEED = 7


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """A changed canary, a tap, or both. looks_up: decides facts far back, not fixed questions."""

    name: str
    looks_up: bool
    change: Callable[[Canary], Canary]
    tap: Callable[[Canary], Tap]


@dataclass(frozen=True, kw_only=True)
class Flips:
    """How many right answers became wrong."""

    name: str
    questions: int
    facts: int

    @property
    def total(self) -> int:
        return self.questions + self.facts


def _same(canary: Canary) -> Canary:
    return canary


def _look(canary: Canary) -> Tap:
    return no_tap


def _replace(ending: str, value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Canary], Tap]:
    """Give a tap that replaces every tensor of sites with this ending."""

    def make(canary: Canary) -> Tap:
        def tap(site: str, tensor: torch.Tensor) -> torch.Tensor:
            return value(tensor) if site.endswith(ending) else tensor

        return tap

    return make


def _random_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.rand(tensor.shape, generator=torch.Generator().manual_seed(_SEED))


def _random_blocks(canary: Canary) -> Tap:
    """Let candidate consumers choose among as many blocks as before, drawn at random."""
    config = canary.config
    size, count = config.candidate_block_size, config.candidate_topk_blocks
    kinds = config.layers
    consumers = {f"layers.{i}.attn": k for i, k in enumerate(kinds) if k.candidates == "consumer"}
    scores: dict[str, torch.Tensor] = {}

    def tap(site: str, tensor: torch.Tensor) -> torch.Tensor:
        where, _, leaf = site.rpartition(".")
        if where not in consumers or leaf not in ("index_scores", "chosen"):
            return tensor
        if leaf == "index_scores":
            scores[where] = tensor
            return tensor
        entries, ratio = tensor.shape[-1], consumers[where].ratio
        blocks = -(-entries // size)
        order = _random_like(tensor[..., :blocks]).argsort(dim=-1)
        kept = (order < min(count, blocks)).repeat_interleave(size, dim=-1)[..., :entries]
        first = entries * ratio - tensor.shape[1]  # exact for ratio 1, the consumers' ratio
        positions = first + torch.arange(tensor.shape[1])
        allowed = visible_entries(positions, entries, ratio) & kept
        return select(scores[where], allowed, config.index_topk)

    return tap


def _without_sinks(canary: Canary) -> Canary:
    off = torch.full((canary.config.num_attention_heads,), -1e30)
    layers = range(canary.config.num_hidden_layers)
    return canary.with_weights({f"layers.{i}.attn.attn_sink": off for i in layers})


def _next_expert(canary: Canary) -> Canary:
    """Give every expert the weights of the one after it."""
    count, changed = canary.config.n_routed_experts, {}
    for name, weight in canary.weights.items():
        site, found, rest = name.partition(".ffn.experts.")
        if found:
            expert, part = rest.split(".", 1)
            changed[f"{site}{found}{(int(expert) + 1) % count}.{part}"] = weight
    return canary.with_weights(changed)


ABLATIONS = (
    Ablation(
        name="window only",
        looks_up=True,
        change=_same,
        tap=_replace(".attn.chosen", torch.zeros_like),
    ),
    Ablation(
        name="compressed zeroed",
        looks_up=True,
        change=_same,
        tap=_replace("compressed_kv", torch.zeros_like),
    ),
    Ablation(
        name="random index", looks_up=True, change=_same, tap=_replace("index_scores", _random_like)
    ),
    Ablation(name="random candidates", looks_up=True, change=_same, tap=_random_blocks),
    Ablation(
        name="Engram zeroed",
        looks_up=False,
        change=_same,
        tap=_replace("engram.found", torch.zeros_like),
    ),
    Ablation(name="sink off", looks_up=False, change=_without_sinks, tap=_look),
    Ablation(name="experts permuted", looks_up=False, change=_next_expert, tap=_look),
)


def ablate(canary: Canary, context: FactContext) -> list[Flips]:
    """Ask everything with each mechanism taken away."""
    questions, facts = answer_questions(canary), answer_facts(canary, context)
    return [ablate_one(canary, context, ablation, questions, facts) for ablation in ABLATIONS]


def ablate_one(
    canary: Canary,
    context: FactContext,
    ablation: Ablation,
    questions: list[Answer],
    facts: list[Answer],
) -> Flips:
    """Count the answers that were right and no longer are.

    Args:
        questions, facts: what the unchanged canary answers.
    """
    changed, tap = ablation.change(canary), ablation.tap(canary)
    return Flips(
        name=ablation.name,
        questions=flipped(questions, answer_questions(changed, tap)),
        facts=flipped(facts, answer_facts(changed, context, tap)),
    )


def flipped(before: list[Answer], after: list[Answer]) -> int:
    """Count the answers that were right before and are not after."""
    pairs = zip(before, after, strict=True)
    return sum(old.right and not new.right for old, new in pairs)
