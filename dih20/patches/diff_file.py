"""Read a unified diff strictly: its structure through unidiff, its lines as raw bytes.

A file that is not a sound diff is PatchMalformed and names its line, before any tree is looked at:
line endings changed on the way, blank context lines stripped, a lost end, UTF-16, wrong counts.
Bytes are never decoded for matching: a diff of a Latin-1 file applies as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as UnidiffHunk
from unidiff.patch import PatchedFile, PatchSet

from dih20.patches.diff_paths import malformed, side_path

Kind = Literal["modify", "add", "delete", "rename", "copy"]

_BLOBS = re.compile(r"^index ([0-9a-f]+)\.\.([0-9a-f]+)")
_MOVED = re.compile(r"^(rename|copy) (from|to) (.+)$")
_MODES = {"100644": 0o100644, "100755": 0o100755}
_NOT_TEXT = (
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
    (b"\xef\xbb\xbf", "a byte order mark"),
)


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """Lines with their newlines as they must stand before (old) and will stand after (new)."""

    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    leading: int
    trailing: int

    @property
    def is_bare(self) -> bool:
        return self.leading == 0 and self.trailing == 0

    def reversed(self) -> Hunk:
        return Hunk(
            start=self.start,
            old=self.new,
            new=self.old,
            leading=self.leading,
            trailing=self.trailing,
        )


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """What a diff does to one file. A blob is git's own hash of a whole file, from the index line."""

    kind: Kind
    old_path: str
    new_path: str
    old_mode: int | None = None
    new_mode: int | None = None
    old_blob: str | None = None
    new_blob: str | None = None
    hunks: tuple[Hunk, ...] = ()
    line: int = field(default=0, compare=False)

    @property
    def path(self) -> str:
        return self.old_path if self.kind == "delete" else self.new_path


def read_diff(name: str, text: bytes) -> list[FileChange]:
    """Give the changes of a diff in their order, or PatchMalformed with the line at fault."""
    raw = text.split(b"\n")
    _check_encoding(name, text, raw)
    lines = [line + "\n" for line in text.decode("latin-1").split("\n")[:-1]]
    reader = _Counted(lines)
    try:
        files = PatchSet(reader)
    except UnidiffParseError as error:
        what = " ".join(str(error).split())
        raise malformed(name, reader.line, f"{what[0].lower()}{what[1:]}") from error
    if not files:
        raise malformed(name, len(lines), "no diff in it")
    _check_lines(name, lines, files)
    return [_change(name, lines, file) for file in files]


class _Counted:
    """Lines for unidiff, remembering how far it came: its errors name no line."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self.line = 0

    def __iter__(self) -> Iterator[str]:
        for self.line, line in enumerate(self._lines, 1):  # noqa: B020
            yield line


def _check_encoding(name: str, text: bytes, raw: list[bytes]) -> None:
    for mark, what in _NOT_TEXT:
        if text.startswith(mark):
            raise malformed(name, 1, what)
    if not text.strip():
        raise malformed(name, 1, "an empty file")
    for number, line in enumerate(raw, 1):
        # no line of file content starts like these two, so a CR here is the patch file's own
        if line.endswith(b"\r") and line.startswith((b"@@ -", b"diff --git ")):
            first = next(n for n, other in enumerate(raw, 1) if other.endswith(b"\r"))
            raise malformed(name, min(first, number), "CRLF")
    if raw[-1]:
        raise malformed(name, len(raw), "no newline after the last line (cut off?)")


def _body(hunk: UnidiffHunk) -> list[int]:
    """Give the line numbers of a hunk's lines; unidiff keeps none for what follows a hunk."""
    return [line.diff_line_no for line in hunk if line.diff_line_no and line.line_type != "\\"]


def _check_lines(name: str, lines: list[str], files: PatchSet) -> None:
    """Find what unidiff lets pass: stripped context, and lines that no hunk counted."""
    bodies = {number for file in files for hunk in file for number in _body(hunk)}
    heads = {_body(hunk)[0] - 1 for file in files for hunk in file if _body(hunk)}
    inside = False
    for number, line in enumerate(lines, 1):
        following = lines[number] if number < len(lines) else ""
        if number in bodies:
            inside = True
            if line == "\n":
                raise malformed(name, number, "a blank context line without its leading space")
        elif _starts_a_file(line, following) or line == "-- \n":
            inside = False
        elif inside and number not in heads and line[0] in " +-@":
            raise malformed(
                name, number, "a line that belongs to no hunk (wrong counts in its @@ line?)"
            )


def _starts_a_file(line: str, following: str) -> bool:
    return line.startswith("diff --git ") or (
        line.startswith("--- ") and following.startswith("+++ ")
    )


def _change(name: str, lines: list[str], file: PatchedFile) -> FileChange:
    number = file.diff_line_no or 1
    if lines[number - 1].startswith("+++ "):
        number -= 1
    if file.is_binary_file:
        raise malformed(name, number, "a binary change, which a unified diff cannot hold,")
    info = [line.rstrip("\n") for line in file.patch_info or ()]
    moved = {(m[1], m[2]): m[3] for line in info if (m := _MOVED.match(line))}
    blobs = next((m for line in info if (m := _BLOBS.match(line))), None)
    kind: Kind = "modify"
    if file.source_file == "/dev/null" or _never(file.source_timestamp):
        kind = "add"
    elif file.target_file == "/dev/null" or _never(file.target_timestamp):
        kind = "delete"
    elif moved:
        kind = "rename" if ("rename", "to") in moved else "copy"
    old = side_path(name, number, moved.get((kind, "from")), file.source_file)
    new = side_path(name, number, moved.get((kind, "to")), file.target_file)
    if kind == "modify" and old != new:
        raise malformed(name, number, f"two names for one file, {old} and {new},")
    return FileChange(
        kind=kind,
        old_path=old or new,
        new_path=new or old,
        old_mode=_mode(name, number, file.source_mode),
        new_mode=_mode(name, number, file.target_mode),
        old_blob=blobs[1] if blobs else None,
        new_blob=blobs[2] if blobs else None,
        hunks=tuple(_hunk(name, lines, hunk) for hunk in file),
        line=number,
    )


def _never(timestamp: str | None) -> bool:
    """Say whether `diff -N` gave a file the time 0, its sign for one that does not exist."""
    return bool(timestamp and re.match(r"(1970-01-01|1969-12-31) ", timestamp))


def _mode(name: str, line: int, text: str | None) -> int | None:
    if text is None:
        return None
    if text not in _MODES:
        what = {"120000": "a symbolic link", "160000": "a submodule"}.get(
            text, "an unknown file type"
        )
        raise malformed(name, line, f"{what} (mode {text}), which is not applied,")
    return _MODES[text]


def _hunk(name: str, lines: list[str], hunk: UnidiffHunk) -> Hunk:
    old: list[bytes] = []
    new: list[bytes] = []
    kinds = ""
    for number in _body(hunk):
        line = lines[number - 1]
        following = lines[number] if number < len(lines) else ""
        content = line[1:].encode("latin-1")
        if following.startswith("\\ "):
            content = content[:-1]
        if any(side and side[-1][-1:] != b"\n" for side in _sides(line[0], old, new)):
            raise malformed(name, number, "a line after the one marked as last")
        for side in _sides(line[0], old, new):
            side.append(content)
        kinds += line[0]
    return Hunk(
        start=hunk.source_start,
        old=tuple(old),
        new=tuple(new),
        leading=len(kinds) - len(kinds.lstrip(" ")),
        trailing=len(kinds) - len(kinds.rstrip(" ")),
    )


def _sides(mark: str, old: list[bytes], new: list[bytes]) -> list[list[bytes]]:
    return {"-": [old], "+": [new], " ": [old, new]}[mark]
