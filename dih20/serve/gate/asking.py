"""Ask every rank the known questions and judge what comes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from dih20.errors import ConfigError
from dih20.serve.gate.degenerate import degenerate_answer
from dih20.serve.gate.judging import Given, Known, judge
from dih20.serve.ranks import RankProcess
from dih20.serve.requests import RequestTable
from dih20.serve.text.chat import TemplateRefused
from dih20.serve.text.codec import Codec


class _Collect:
    """A sink that keeps what comes until the answer ends."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.log_probs: list[float] = []
        self.ended = False
        self.done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def take(self, emission: list[Any]) -> bool:
        _, tokens, log_probs, _, finish, _, message = emission
        self.ids += tokens
        self.ended = finish == "stop"
        # a NaN travels as null
        self.log_probs += [float("nan") if value is None else value for value in log_probs]
        if finish is not None and not self.done.done():
            self.done.set_result(message if finish == "error" else "")
        return False

    def take_one(self, token: int, emitted_ns: int) -> bool:
        return self.take([0, [token], [], [], None, emitted_ns, ""])

    def fail(self, message: str) -> None:
        if not self.done.done():
            self.done.set_result(message)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the gate found. state: passed, unrecorded (text and F46 only) or failed."""

    state: str
    reason: str = ""
    remark: str = ""
    seconds: float = 0.0
    at: float = 0.0
    answers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.state in ("passed", "unrecorded")


async def ask_all(
    table: RequestTable,
    ranks: list[RankProcess],
    codec: Codec,
    questions: list[Known],
    *,
    first_ids: int,
    timeout_s: float,
    remark: str = "",
) -> Verdict:
    """Ask each rank each question, all at once; the first wrong answer decides."""
    began = time.monotonic()
    asked = [(rank, known) for rank in ranks for known in questions]
    try:
        async with asyncio.timeout(timeout_s):
            given = await asyncio.gather(
                *(_ask(table, rank, codec, known) for rank, known in asked)
            )
    except TimeoutError:
        reason = f"no answer within gate_timeout_s = {timeout_s:g} s"
        return Verdict(state="failed", reason=reason, seconds=timeout_s, at=time.time())
    answers, reasons = [], []
    for (rank, known), answer in zip(asked, given, strict=True):
        wrong = answer if isinstance(answer, str) else judge(known, answer, first_ids)
        if wrong:
            reasons.append(f"rank {rank.rank}: {wrong}")
        row = {} if isinstance(answer, str) else asdict(answer)
        answers.append({"rank": rank.rank, "question": known.question, **row, "wrong": wrong})
    if not reasons and (joint := _together([g for g in given if isinstance(g, Given)])):
        reasons.append(joint)
    recorded = all(known.ids for known in questions)
    return Verdict(
        state="failed" if reasons else "passed" if recorded else "unrecorded",
        reason="; ".join(reasons[:3]),
        remark=remark,
        seconds=round(time.monotonic() - began, 3),
        at=time.time(),
        answers=answers,
    )


def _together(given: list[Given]) -> str | None:
    """Judge all answers as one: a constant shows even when each answer is short."""
    ids = [id for one in given for id in one.ids]
    log_probs = [value for one in given for value in one.log_probs]
    return degenerate_answer(ids, log_probs)


def known_prompt(codec: Codec, known: Known) -> list[int]:
    """Give a question's ids, by the same way as a client's request would go."""
    if not known.chat:
        return codec.encode(known.prompt, special=True)
    if codec.chat is None:
        raise ConfigError(
            found=f"the question {known.question!r} is to be asked as a chat",
            expected="a chat template in the checkpoint's tokenizer files",
            remedy="use `ask: completion` in the answers file",
        )
    try:
        text = codec.chat.render([{"role": "user", "content": known.prompt}])
    except TemplateRefused as fault:
        raise ConfigError(
            found=f"the chat template refuses the question {known.question!r}: {fault}",
            expected="a template that takes one message of a user",
            remedy="use `ask: completion` in the answers file",
        ) from fault
    return codec.encode(text, special=False)


async def _ask(table: RequestTable, rank: RankProcess, codec: Codec, known: Known) -> Given | str:
    """Give the answer, or why there is none."""
    prompt = known_prompt(codec, known)
    sink = _Collect()
    values = {"prompt": prompt, "max_tokens": known.max_tokens, "temperature": 0.0, "logprobs": 0}
    began = time.monotonic()
    ticket = table.submit(values, sink, rank)
    try:
        if failed := await sink.done:
            return failed
    finally:
        table.cancel(ticket)
    if len(sink.log_probs) != len(sink.ids):
        return f"{len(sink.ids)} tokens came with {len(sink.log_probs)} log-probs"
    return Given(
        prompt_ids=prompt,
        ids=sink.ids,
        text=codec.decode(sink.ids),
        log_probs=sink.log_probs,
        ended=sink.ended,
        seconds=round(time.monotonic() - began, 3),
    )
