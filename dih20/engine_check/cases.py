"""The token sequences that are run: fixed questions, long contexts, and what is dumped."""

from __future__ import annotations

from dataclasses import dataclass

from v41.canary.facts import fact_context
from v41.canary.questions import QUESTIONS
from v41.canary.tokenizer import Tokenizer

EOS = "<｜end▁of▁sentence｜>"
CONTINUED = 12  # tokens that follow a long prompt
# Around the window (128), the selection (64 entries: 64 and 128 tokens) and the candidate pool (512).
LENGTHS = (63, 129, 300, 511, 523, 700, 900)
MIXED = (900, 5, 300, 63)  # asked together; each is the head of a text of its own
MODEL_LENGTH = 1024
DUMPED = ((90, 3), (640, 4))  # tokens of the prompt, decode steps


@dataclass(frozen=True, kw_only=True)
class Case:
    """A prompt, and how it goes on: None when the reference's own greedy tokens are taken."""

    name: str
    prompt: tuple[int, ...]
    golden: tuple[int, ...] | None = None


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
    """Give contexts of each length, ending in a question about a fact in them where one fits."""
    return [
        Case(name=f"{length} tokens", prompt=_text(tokenizer, length, seed))
        for seed, length in enumerate(LENGTHS)
    ]


def mixed(tokenizer: Tokenizer) -> list[Case]:
    return [
        Case(name=f"{length} tokens, mixed", prompt=_text(tokenizer, length, 100 + seed))
        for seed, length in enumerate(MIXED)
    ]


def dumped(tokenizer: Tokenizer) -> list[tuple[Case, int]]:
    """Give what is dumped at every site, and the number of decode steps."""
    return [
        (Case(name=f"{length} tokens", prompt=_text(tokenizer, length, 200 + seed)), steps)
        for seed, (length, steps) in enumerate(DUMPED)
    ]


def _text(tokenizer: Tokenizer, length: int, seed: int) -> tuple[int, ...]:
    """Give `length` tokens: facts and filler, and the question after them at the end."""
    sentences = max(length // 5, 4)
    context = fact_context(
        seed,
        sentences=sentences + 2,
        facts=max(sentences // 3, 2),
        asked=1,
        far=5 * (sentences // 2),
    )
    tail = tokenizer.encode(context.questions[0].prompt)
    head = tokenizer.encode(context.text)[: max(length - len(tail), 0)]
    return tuple((head + tail)[-length:])
