"""Ask the fixed questions greedily, several at once, and read the answers."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from dih20.engine_check.cases import EOS
from dih20.engine_check.driver import GREEDY, Ask, Driver
from dih20.engine_check.reference import ReferenceValues

LONGEST = 10


def ask_all(driver: Driver, values: ReferenceValues, checkpoint: Path) -> dict[str, Any]:
    """Give how many answers, and how many first tokens, are right, and what came instead."""
    from v41.canary.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(checkpoint / "tokenizer.json")
    end = tokenizer.vocab[EOS]
    asks = [
        Ask(prompt=case.prompt, max_tokens=LONGEST, temperature=GREEDY) for case in values.questions
    ]
    replies = driver.generate(asks)
    right = first = 0
    wrong: list[dict[str, str]] = []
    for case, expected, reply in zip(values.questions, values.answers, replies, strict=True):
        got = tokenizer.decode([token for token in reply.tokens if token != end])
        right += got == expected and not reply.fault
        first += reply.tokens[:1] == list(case.golden[:1])
        if got != expected or reply.fault:
            wrong.append({"asked": case.name, "expected": expected, "got": reply.fault or got})
    said = [value for reply in replies for value in reply.logprobs if value == value]
    return {
        "answers_right": right,
        "answers_asked": len(asks),
        "first_token_right": first,
        "log_prob_mean": round(statistics.fmean(said), 4) if said else None,
        "wrong": wrong[:5],
    }
