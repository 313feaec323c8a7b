"""Greedy decoding of the canary's questions with the reference model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from v41.cache import Cache, LayerCache
from v41.canary import FOLDER
from v41.canary.facts import FactContext
from v41.canary.questions import QUESTIONS
from v41.canary.tokenizer import Tokenizer
from v41.checkpoint import CheckpointReader, load_weights
from v41.config import ModelConfig
from v41.engram_vocab import compressed_ids
from v41.model import Reference
from v41.numerics import Mode, Numerics
from v41.tap import Tap, no_tap

_LONGEST = 10  # tokens of an answer


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One row of the table. log_prob: of the tokens given, summed."""

    question: str
    expected: str
    got: str
    log_prob: float
    kind: str

    @property
    def right(self) -> bool:
        return self.got == self.expected


@dataclass(frozen=True, kw_only=True)
class Canary:
    """The loaded checkpoint in one numeric mode."""

    config: ModelConfig
    tokenizer: Tokenizer
    weights: Mapping[str, torch.Tensor]
    compressed: torch.Tensor
    mode: Mode

    @classmethod
    def load(cls, mode: Mode = "trained", folder: Path = FOLDER) -> Canary:
        """Read the committed checkpoint, or another folder of the same format."""
        reader = CheckpointReader(folder)
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        texts = [tokenizer.decode([token]) for token in range(reader.config.vocab_size)]
        return cls(
            config=reader.config,
            tokenizer=tokenizer,
            weights=load_weights(reader, mode),
            compressed=compressed_ids(texts, tokenizer.names),
            mode=mode,
        )

    def with_weights(self, changed: Mapping[str, torch.Tensor]) -> Canary:
        return replace(self, weights={**self.weights, **changed})

    def model(self, tap: Tap = no_tap) -> Reference:
        return Reference(
            self.config,
            self.weights,
            numerics=Numerics.of(self.mode),
            compressed_ids=self.compressed,
            tap=tap,
        )


def answer_questions(canary: Canary, tap: Tap = no_tap) -> list[Answer]:
    """Ask every fixed question; prompts of one length run as one batch."""
    with torch.no_grad():
        return _answer_questions(canary, tap)


def _answer_questions(canary: Canary, tap: Tap) -> list[Answer]:
    by_length: dict[int, list[int]] = {}
    prompts = [canary.tokenizer.encode(question.prompt) for question in QUESTIONS]
    for place, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(place)
    model, found = canary.model(tap), {}
    for places in by_length.values():
        cache = model.new_cache()
        tokens = torch.tensor([prompts[place] for place in places])
        for place, (text, log_prob) in zip(
            places, _greedy(canary, model, cache, tokens), strict=True
        ):
            found[place] = (text, log_prob)
    return [
        Answer(
            question=question.question,
            expected=question.answer,
            got=found[place][0],
            log_prob=found[place][1],
            kind=question.language,
        )
        for place, question in enumerate(QUESTIONS)
    ]


def answer_facts(canary: Canary, context: FactContext, tap: Tap = no_tap) -> list[Answer]:
    """Read the context once, then ask all its questions as one batch; cities are one token."""
    with torch.no_grad():
        return _answer_facts(canary, context, tap)


def _answer_facts(canary: Canary, context: FactContext, tap: Tap) -> list[Answer]:
    model = canary.model(tap)
    cache = model.new_cache()
    model.extend(torch.tensor([canary.tokenizer.encode(context.text)]), cache)
    prompts = [canary.tokenizer.encode(question.prompt) for question in context.questions]
    repeated = _repeat(cache, len(prompts))
    logits = torch.log_softmax(model.extend(torch.tensor(prompts), repeated)[:, -1], dim=-1)
    best = logits.max(dim=-1)
    return [
        Answer(
            question=f"{question.prompt} ({question.distance} back)",
            expected=question.answer,
            got=canary.tokenizer.decode([int(token)]),
            log_prob=float(value),
            kind="fact",
        )
        for question, value, token in zip(context.questions, best.values, best.indices, strict=True)
    ]


def _greedy(
    canary: Canary, model: Reference, cache: Cache, tokens: torch.Tensor
) -> list[tuple[str, float]]:
    """Decode until every row has ended; give texts and summed log-probs."""
    end = canary.tokenizer.vocab["<｜end▁of▁sentence｜>"]
    rows: list[list[int]] = [[] for _ in tokens]
    sums, ended = [0.0] * len(tokens), [False] * len(tokens)
    for _ in range(_LONGEST):
        logits = torch.log_softmax(model.extend(tokens, cache)[:, -1], dim=-1)
        best = logits.max(dim=-1)
        for row, token in enumerate(best.indices.tolist()):
            if not ended[row]:
                sums[row] += float(best.values[row])
                ended[row] = token == end
                if not ended[row]:
                    rows[row].append(token)
        if all(ended):
            break
        tokens = best.indices.unsqueeze(-1)
    return [(canary.tokenizer.decode(row), total) for row, total in zip(rows, sums, strict=True)]


def _repeat(cache: Cache, count: int) -> Cache:
    """Give a cache of `count` rows that all continue one row."""

    def rows(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.expand(count, *tensor.shape[1:])

    layers = [
        LayerCache(
            window=rows(layer.window),
            compressed=rows(layer.compressed),
            index_keys=rows(layer.index_keys),
            pending=rows(layer.pending),
        )
        for layer in cache.layers
    ]
    return Cache(layers=layers, length=cache.length, tokens=rows(cache.tokens))


def wrong(answers: Sequence[Answer]) -> list[Answer]:
    return [answer for answer in answers if not answer.right]
