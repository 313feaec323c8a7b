"""A problem in three parts: what was found, what was expected, what to do next."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Problem(Exception):
    """One thing that is wrong; `stops` says that nothing after it can be tried."""

    check: str
    found: str
    expected: str
    next: str
    stops: bool = False

    def __str__(self) -> str:
        return f"{self.check}: {self.found}\n  expected: {self.expected}\n  next:     {self.next}"

    def as_dict(self) -> dict[str, object]:
        return asdict(self)
