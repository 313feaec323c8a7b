"""The questions of the gate: the canary's, built in, or those of a file with recorded ids."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dih20.errors import ConfigError
from dih20.serve.gate.judging import Known
from dih20.serve.settings import Settings

CANARY = Path(__file__).parent / "canary.json"


_M = TypeVar("_M", bound=BaseModel)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Question(_Part):
    """One question. configs/answers.yaml is the manual of these keys."""

    question: str = Field(min_length=1)
    contains: str = Field(min_length=1)
    ask: Literal["chat", "completion"] = "chat"
    max_tokens: int = Field(default=32, ge=1, le=1024)
    lowest_log_prob: float = Field(default=-3.0, le=0.0)
    log_prob_tolerance: float = Field(default=0.5, gt=0.0)


class Answers(_Part):
    """A file of questions."""

    questions: tuple[Question, ...] = Field(min_length=1)


class Recording(_Part):
    """What one question got when it was recorded."""

    prompt_ids: tuple[int, ...] = Field(min_length=1)
    ids: tuple[int, ...] = Field(min_length=1)
    log_probs: tuple[float, ...] = Field(min_length=1)


class Recorded(_Part):
    """A file of recorded ids. origin: what served them, and when."""

    origin: dict[str, str]
    recordings: dict[str, Recording]


def canary_questions() -> list[Known]:
    """Give four of the canary's questions; their ids are exact, the end token included.

    The log-probs are the reference's; its modes trained, exact and sm90 differ by 0.002 at most.
    """
    return [Known(**row) for row in json.loads(CANARY.read_text(encoding="utf-8"))]


def known_questions(settings: Settings) -> tuple[list[Known], str]:
    """Give what the gate asks, and a remark on ids that are there and cannot be used."""
    gate = settings.gate
    if gate.answers is None:
        return canary_questions(), ""
    answers = load_answers(gate.answers)
    known = [
        Known(
            question=each.question,
            prompt=each.question,
            contains=each.contains,
            chat=each.ask == "chat",
            max_tokens=each.max_tokens,
            lowest_log_prob=each.lowest_log_prob,
            tolerance=each.log_prob_tolerance,
        )
        for each in answers.questions
    ]
    if gate.recorded is None or not gate.recorded.exists() or gate.record_answers is not None:
        return known, ""
    recorded = load_recorded(gate.recorded)
    now, then = settings.identities.get("checkpoint"), recorded.origin.get("checkpoint")
    if now != then:
        return known, f"the ids in {gate.recorded.name} are of checkpoint {then}, this one is {now}"
    return [_with_ids(each, recorded.recordings.get(each.question)) for each in known], ""


def _with_ids(known: Known, recording: Recording | None) -> Known:
    if recording is None:
        return known
    return replace(
        known,
        prompt_ids=recording.prompt_ids,
        ids=recording.ids,
        log_probs=recording.log_probs,
    )


def load_answers(path: Path) -> Answers:
    """Read a file of questions, JSON or YAML; everything wrong in it is one ConfigError."""
    return _load(path, Answers)


def load_recorded(path: Path) -> Recorded:
    """Read a file of recorded ids."""
    return _load(path, Recorded)


def _load(path: Path, model: type[_M]) -> _M:
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else _yaml(text)
        return model.model_validate(values)
    except ValidationError as fault:
        wrong = [f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in fault.errors()]
        found = "\n  ".join(wrong)
    except (OSError, ValueError) as fault:
        found = str(fault)
    raise ConfigError(
        found=f"{path}: {found}",
        expected="the keys that configs/answers.yaml explains",
        remedy="correct the file, then start again",
    )


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as fault:
        raise ValueError(f"not YAML: {fault}") from fault
