"""Order Debian versions as dpkg does: epoch, upstream version, revision; a tilde sorts before the end."""

from __future__ import annotations

import re
from typing import Final

_PARTS: Final = re.compile(r"(\D*)(\d*)")


def compare(one: str, other: str) -> int:
    """Give a negative number, zero or a positive one, as `one` is older, the same or newer."""
    (epoch, upstream, revision), (epoch2, upstream2, revision2) = _split(one), _split(other)
    return (
        (epoch > epoch2) - (epoch < epoch2)
        or _compare_part(upstream, upstream2)
        or _compare_part(revision, revision2)
    )


def holds(version: str, operator: str, bound: str) -> bool:
    """Say whether a version relation such as `>= 1.2` holds for a version."""
    order = compare(version, bound)
    match operator:
        case "<<":
            return order < 0
        case "<=" | "<":
            return order <= 0
        case "=":
            return order == 0
        case ">=" | ">":
            return order >= 0
        case ">>":
            return order > 0
    raise AssertionError(f"no relation {operator!r}; control files use << <= = >= >>")


def _split(version: str) -> tuple[int, str, str]:
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, dash, revision = rest.rpartition("-")
    return int(epoch), upstream if dash else rest, revision if dash else "0"


def _compare_part(one: str, other: str) -> int:
    """Compare text and number by turns; letters sort before other signs, a tilde before nothing."""
    ours, theirs = _PARTS.findall(one), _PARTS.findall(other)
    for i in range(max(len(ours), len(theirs))):
        text, number = ours[i] if i < len(ours) else ("", "")
        text2, number2 = theirs[i] if i < len(theirs) else ("", "")
        keys, keys2 = _keys(text), _keys(text2)
        value, value2 = int(number or 0), int(number2 or 0)
        if keys != keys2:
            return -1 if keys < keys2 else 1
        if value != value2:
            return -1 if value < value2 else 1
    return 0


def _keys(text: str) -> list[int]:
    keys = [-1 if c == "~" else ord(c) if c.isalpha() else ord(c) + 256 for c in text]
    return [*keys, 0]  # the end: after a tilde, before everything else
