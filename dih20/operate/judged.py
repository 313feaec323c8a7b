"""Ask a running server one question over its own API, and judge what comes back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dih20.errors import DegenerateAnswer, NotServing
from dih20.operate.endpoint import Endpoint, Reply
from dih20.serve.gate.degenerate import degenerate_answer


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the server said: log-probs are natural, one per token; verdict is empty for a healthy one."""

    question: str
    text: str
    tokens: tuple[str, ...]
    log_probs: tuple[float, ...]
    finish_reason: str
    verdict: str
    usage: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def ask(endpoint: Endpoint, model: str, question: str, *, max_tokens: int) -> Answer:
    """Give the greedy answer to a question in a chat of one message, judged."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "logprobs": True,
    }
    reply = endpoint.post("/v1/chat/completions", body)
    if reply is None or reply.status != 200:
        raise refused(endpoint, reply)
    return read(question, reply.values)


def read(question: str, values: dict[str, Any]) -> Answer:
    """Give the answer in a chat completion, with the verdict on its log-probs."""
    choice = values["choices"][0]
    steps = ((choice.get("logprobs") or {}).get("content")) or []
    tokens = tuple(str(step["token"]) for step in steps)
    # JSON has no NaN: a server writes null for one, and that is no number either
    log_probs = tuple(
        float("nan") if step["logprob"] is None else float(step["logprob"]) for step in steps
    )
    ids = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    verdict = degenerate_answer([ids[token] for token in tokens], log_probs) if steps else None
    return Answer(
        question=question,
        text=str(choice["message"]["content"]),
        tokens=tokens,
        log_probs=log_probs,
        finish_reason=str(choice.get("finish_reason")),
        verdict=verdict or ("" if steps else "no log-prob came with the answer"),
        usage=dict(values.get("usage") or {}),
    )


def require_healthy(answer: Answer) -> None:
    if answer.verdict:
        raise DegenerateAnswer(
            found=f"the answer {answer.text[:80]!r} is degenerate: {answer.verdict}",
            expected="log-probs that differ from step to step, are numbers, and are not all 0",
            remedy="take this server out of use; `./inv parity` compares its engine with the reference",
            details={"answer": answer.as_dict()},
        )


def refused(endpoint: Endpoint, reply: Reply | None) -> NotServing:
    """Give the error for a request that was not answered."""
    error = reply.values.get("error") if reply else None
    said = error.get("message") if isinstance(error, dict) else None
    return NotServing(
        found=f"{endpoint.url} "
        + (
            f"answered {reply.status}: {said or reply.body[:200]!r}" if reply else "does not answer"
        ),
        expected="an answer to one question",
        remedy="run `./inv status`; a server that starts answers 503 until it is ready",
    )
