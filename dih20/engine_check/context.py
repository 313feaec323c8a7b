"""What a stage is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dih20.engine_check.options import Options
from dih20.engine_check.reference import ReferenceValues


@dataclass(frozen=True, kw_only=True)
class Context:
    """checkpoint: the canary with its vision shard. begin: tells the parent what part runs now.

    faults: names of the faults of stage h that this process tries; () for those that end no engine.
    """

    options: Options
    work: Path
    checkpoint: Path
    values: ReferenceValues
    sources: dict[str, str] = field(default_factory=dict)
    begin: Callable[[str], None] = field(default=lambda part: None)
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """reasons: why the stage did not pass, one sentence each; none when it did.

    pending: the numbers are still being judged on the CPU; the parent writes the record.
    """

    numbers: dict[str, Any]
    reasons: tuple[str, ...] = ()
    pending: bool = False

    @property
    def passed(self) -> bool:
        return not self.reasons
