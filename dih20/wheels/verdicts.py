"""A verdict: one thing the inspector looked at, and what it saw."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "fail", "not applicable"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One judged promise. `fail` carries what was expected and what to do."""

    check: str
    status: Status
    found: str
    expected: str = ""
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        return {key: value for key, value in asdict(self).items() if value}


def ok(check: str, found: str) -> Verdict:
    return Verdict(check=check, status="ok", found=found)


def fail(check: str, found: str, *, expected: str, remedy: str) -> Verdict:
    return Verdict(check=check, status="fail", found=found, expected=expected, remedy=remedy)


def not_applicable(check: str, why: str) -> Verdict:
    return Verdict(check=check, status="not applicable", found=why)
