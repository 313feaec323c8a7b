"""Walk a build context the way .dockerignore says, quickly and always in the same order.

The last pattern that matches decides; `!` takes a path back in. A folder that is left out is
entered only when some `!` pattern could match below it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dih20.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One line of an ignore file."""

    text: str
    takes_back: bool
    matcher: re.Pattern[str]

    def matches(self, path: str) -> bool:
        """Say whether the pattern names this path or a folder above it."""
        return self.matcher.fullmatch(path) is not None

    def could_match_below(self, folder: str) -> bool:
        """Say whether some path below the folder could match; a wildcard part matches anything."""
        wanted, have = self.text.split("/"), folder.split("/")
        for want, part in zip(wanted, have, strict=False):
            if want == "**":
                return True
            if not re.fullmatch(_part(want), part):
                return False
        return True


def parse(text: str, name: str = ".dockerignore") -> list[Pattern]:
    """Read an ignore file: comments, blank lines and leading slashes do not count."""
    patterns = []
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        takes_back = line.startswith("!")
        cleaned = os.path.normpath(line.removeprefix("!").strip()).lstrip("/")
        if cleaned in ("", "."):
            continue
        try:
            matcher = re.compile(_expression(cleaned) + r"(?:/.*)?", re.S)
        except re.error as fault:
            raise UsageError(
                found=f"{name}:{number}: {line!r} is not a pattern: {fault.msg}",
                expected="* ? ** and characters or rising ranges in [ ], as Docker reads them",
                remedy="correct the line; a backslash before [ or ] makes it mean itself",
            ) from fault
        patterns.append(Pattern(text=cleaned, takes_back=takes_back, matcher=matcher))
    return patterns


def is_left_out(path: str, patterns: Sequence[Pattern]) -> bool:
    """Say whether a path stays out of the context."""
    verdict = next((p for p in reversed(patterns) if p.matches(path)), None)
    return verdict is not None and not verdict.takes_back


def context_files(
    root: Path, patterns: Sequence[Pattern]
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Give (relative path, entry) of everything in the context, sorted by path."""
    back = [pattern for pattern in patterns if pattern.takes_back]
    yield from _walk(str(root), "", patterns, back)


def _walk(
    folder: str, prefix: str, patterns: Sequence[Pattern], back: Sequence[Pattern]
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        path = prefix + entry.name
        left_out = is_left_out(path, patterns)
        if not left_out:
            yield path, entry
        if entry.is_dir(follow_symlinks=False):
            if left_out and not any(pattern.could_match_below(path) for pattern in back):
                continue
            yield from _walk(entry.path, path + "/", patterns, back)


def _expression(pattern: str) -> str:
    parts = pattern.split("/")
    out = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            out += ".*" if last else "(?:.*/)?"
        else:
            out += _part(part) + ("" if last else "/")
    return out


def _part(part: str) -> str:
    """Translate one path component: * ? [a-z] and backslash escapes, as Go's filepath.Match reads them."""
    out, index = "", 0
    while index < len(part):
        char = part[index]
        if char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "\\" and index + 1 < len(part):
            index += 1
            out += re.escape(part[index])
        elif char == "[" and "]" in part[index + 1 :]:
            end = part.index("]", index + 1)
            inside = part[index + 1 : end]
            if inside in ("", "^"):  # a regular expression would take the ] as the first member
                raise re.error("nothing between [ and ]")
            out += "[" + inside.replace("\\", "\\\\") + "]"
            index = end
        else:
            out += re.escape(char)
        index += 1
    return out
