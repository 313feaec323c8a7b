"""Show a server's log: all of it or one rank's, with known fatal lines explained where they stand."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dih20.console import Console
from dih20.operate.fatal_lines import Known, known

_RANK = re.compile(r"^\[rank (\d+)\] ")


def of_rank(line: str, rank: int | None) -> bool:
    """Say whether a line is shown: with a rank, only lines that it wrote."""
    if rank is None:
        return True
    match = _RANK.match(line)
    return match is not None and int(match[1]) == rank


def show_lines(ui: Console, lines: Iterable[str], *, rank: int | None) -> dict[str, object]:
    """Print lines as they come; each known fatal one is explained once, right below it."""
    shown, explained = 0, dict[Known, None]()
    for line in lines:
        if not of_rank(line, rank):
            continue
        shown += 1
        ui.line(line)
        entry = known(line)
        if entry is not None and entry not in explained:
            explained[entry] = None
            ui.warn(f"known: {entry.means}")
            ui.line(f"         {entry.do}")
    return {"lines": shown, "known": [{"means": e.means, "do": e.do} for e in explained]}
