"""The token sequences that are run: fixed questions, long contexts, and what is dumped."""

from __future__ import annotations

from dataclasses import dataclass

from v41.canary.facts import fact_context
from v41.canary.questions import QUESTIONS
from v41.canary.tokenizer import Tokenizer

EOS = "<｜end▁of▁sentence｜>"
# Around the window (128), the selection (64 entries: 64 and 128 tokens) and the candidate pool (512).
LENGTHS = (63, 129, 300, 511, 523, 700, 900)
MIXED = (900, 300, 63)  # asked together, with a fixed question among them
MODEL_LENGTH = 1024
DUMPED = ((90, 3), (640, 4))  # tokens of the prompt, decode steps


@dataclass(frozen=True, kw_only=True)
class Case:
    """A prompt, and the tokens that follow whatever is sampled."""

    name: str
    prompt: tuple[int, ...]
    golden: tuple[int, ...]


def questions(tokenizer: Tokenizer) -> list[Case]:
    """Give the fixed questions with their right answers and the end of the text."""
    end = tokenizer.vocab[EOS]
    return [
        Case(
            name=question.question,
            prompt=tuple(tokenizer.encode(question.prompt)),
            golden=(*tokenizer.encode(question.answer), end),
        )
        for question in QUESTIONS
    ]


def long_prompts(tokenizer: Tokenizer) -> list[Case]:
    """Give contexts of each length that end in a question; its answer and another question follow."""
    return [
        _facts(tokenizer, f"{length} tokens", length, seed) for seed, length in enumerate(LENGTHS)
    ]


def mixed(tokenizer: Tokenizer) -> list[Case]:
    """Give prompts of very different lengths, to be asked together; one is a fixed question."""
    long = [
        _facts(tokenizer, f"{length} tokens, mixed", length, 100 + seed)
        for seed, length in enumerate(MIXED)
    ]
    return [long[0], questions(tokenizer)[11], *long[1:]]


def dumped(tokenizer: Tokenizer) -> list[tuple[Case, int]]:
    """Give what is dumped at every site, and the number of decode steps."""
    return [
        (_facts(tokenizer, f"{length} tokens", length, 200 + seed), steps)
        for seed, (length, steps) in enumerate(DUMPED)
    ]


def _facts(tokenizer: Tokenizer, name: str, length: int, seed: int) -> Case:
    """Give `length` tokens of facts and filler, ending in a question about one of the facts.

    What follows: the city, then a whole other question and its city.
    """
    sentences = length // 5 + 2
    facts = max(sentences // 3, 3)
    context = fact_context(
        seed, sentences=sentences, facts=facts, asked=2, far=5 * (sentences // 3)
    )
    first, second = context.questions
    tail = tokenizer.encode(first.prompt)
    head = tokenizer.encode(context.text)[: length - len(tail)]
    after = tokenizer.encode(first.answer + second.prompt + second.answer)
    return Case(name=name, prompt=tuple(head + tail), golden=tuple(after))
