"""Find where hunks belong in a file: every line must match, so there is no fuzz.

A block may have moved as a whole (a pure line offset, which is reported), when it stands in
exactly one place. Two places that fit are refused: which one was meant cannot be known, unless the
file's hash shows that it is the very file the diff was made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dih20.patches.diff_file import Hunk


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a hunk cannot be placed; hunks count from 1."""

    hunk: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Placing:
    """The new lines of a file, and by how many lines each hunk had moved."""

    lines: tuple[bytes, ...]
    offsets: tuple[int, ...]


def place(lines: Sequence[bytes], hunks: Sequence[Hunk], *, proven: bool) -> Placing | Refusal:
    """Apply all hunks or none.

    Args:
        lines: the file, each line with its newline.
        hunks: in the diff's order; all refer to the file as it was before the first.
        proven: the file's hash is the one the diff was made from, so stated lines are the truth.
    """
    out = list(lines)
    placed: list[tuple[int, Hunk]] = []
    for number, hunk in enumerate(hunks, 1):
        found = _position(lines, hunk, proven)
        if isinstance(found, str):
            return Refusal(hunk=number, why=found)
        if placed and found < placed[-1][0] + len(placed[-1][1].old):
            return Refusal(
                hunk=number, why=f"it fits at line {found + 1} only, above the hunk before it"
            )
        placed.append((found, hunk))
    for found, hunk in reversed(placed):
        out[found : found + len(hunk.old)] = hunk.new
    offsets = tuple(found - _stated(hunk) for found, hunk in placed)
    if any(line[-1:] != b"\n" for line in out[:-1]):
        return Refusal(hunk=len(hunks), why="it would join two lines: the file's end has moved")
    return Placing(lines=tuple(out), offsets=offsets)


def _stated(hunk: Hunk) -> int:
    return hunk.start - 1 if hunk.old else hunk.start


def _position(lines: Sequence[bytes], hunk: Hunk, proven: bool) -> int | str:
    stated = _stated(hunk)
    if proven:
        return stated if _fits(lines, hunk, stated) else _mismatch(lines, hunk, stated)
    if not hunk.old:
        if not lines:
            return 0
        return "it has no context lines, so its place in a changed file cannot be known"
    fitting = [at for at in range(len(lines) - len(hunk.old) + 1) if _fits(lines, hunk, at)]
    fitting = [at for at in fitting if _anchored(lines, hunk, at)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        places = ", ".join(str(at + 1) for at in fitting[:6])
        return f"ambiguous: it fits at lines {places}; more context lines or git's index line would decide"
    return _mismatch(lines, hunk, stated)


def _fits(lines: Sequence[bytes], hunk: Hunk, at: int) -> bool:
    if at < 0 or at + len(hunk.old) > len(lines):
        return False
    return all(lines[at + i] == line for i, line in enumerate(hunk.old))


def _anchored(lines: Sequence[bytes], hunk: Hunk, at: int) -> bool:
    """A diff shows no context only where the file has none: such a side must lie at its border."""
    if hunk.is_bare:
        return True
    if hunk.leading == 0 and hunk.start <= 1 and at != 0:
        return False
    return not (hunk.trailing == 0 and at + len(hunk.old) != len(lines))


def _mismatch(lines: Sequence[bytes], hunk: Hunk, stated: int) -> str:
    """Say which line differs first at the best place: the one where most lines agree."""

    def agreeing(at: int) -> int:
        return sum(
            lines[at + i] == line for i, line in enumerate(hunk.old) if 0 <= at + i < len(lines)
        )

    places = range(-len(hunk.old) + 1, len(lines))
    best = max(places, key=lambda at: (agreeing(at), -abs(at - stated)), default=stated)
    for i, wanted in enumerate(hunk.old):
        at = best + i
        if not 0 <= at < len(lines):
            return f"line {at + 1} should be {_shown(wanted)}, and the file has {len(lines)} lines"
        if lines[at] != wanted:
            if lines[at].rstrip(b"\r\n") == wanted.rstrip(b"\r\n"):
                return f"line {at + 1} differs in its line ending only: {_shown(lines[at])}, wanted {_shown(wanted)}"
            return f"line {at + 1} is {_shown(lines[at])}, wanted {_shown(wanted)}"
    return f"its lines stand at line {best + 1}, but not at that end of the file where it belongs"


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", errors="backslashreplace")
    shown = repr(text if text[-1:] != "\n" else text[:-1])
    return (shown if len(shown) < 90 else shown[:86] + "...'") + (
        "" if text.endswith("\n") else " without newline"
    )
