"""Log lines that are known to end a server, and what to do about each: a small table of data."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

_TABLE = Path(__file__).with_name("fatal_lines.yaml")


@dataclass(frozen=True, kw_only=True)
class Known:
    """A line that is known: what it looks like, what it means, what to do."""

    pattern: re.Pattern[str]
    means: str
    do: str


@functools.cache
def table() -> tuple[Known, ...]:
    """Give every entry of fatal_lines.yaml, in its order."""
    rows = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return tuple(
        Known(pattern=re.compile(row["line"]), means=row["means"], do=row["do"]) for row in rows
    )


def known(line: str) -> Known | None:
    """Give the entry that explains a line; None for a line that is not known to be fatal."""
    return next((entry for entry in table() if entry.pattern.search(line)), None)


def explained(lines: Iterable[str]) -> list[Known]:
    """Give the entries that explain some lines, each once, in the order they come up."""
    found = (known(line) for line in lines)
    return list(dict.fromkeys(entry for entry in found if entry is not None))
