"""Cut the output of a step into lines as it comes, and find the lines that say why it failed."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence

MOST_LINES = 12

# What compilers, linkers, apt, dpkg, pip and our own scripts start an error with.
_ERROR = re.compile(
    r"""
      ^\S+:\d+(:\d+)?:\s+(fatal\s+)?error:      # gcc, clang
    | ^\S+\(\d+\):\s+(catastrophic\s+)?error    # nvcc front end
    | ^nvcc\s+(fatal|error)
    | ^ptxas\s+(fatal|error)
    | undefined\s+reference\s+to | cannot\s+find\s+-l | ^collect2:\s+error
    | ^[EW]:\s.*(sign|GPG|NO_PUBKEY|key|hash|Hash|mismatch|Release|release)
    | ^E:\s
    | ^(Err|ERR):\d+
    | ^dpkg(-deb)?:\s+(error|dependency\s+problems) | ^\s+\S+\s+depends\s+on\s
    | ^dpkg:\s+considering | ^Errors\s+were\s+encountered
    | ^ERROR:\s | ^Looking\s+in\s+(indexes|links):
    | ^\s*error:\s | ^\s*(×|╰─>|hint:)\s
    | ^[\w.]*(Error|Exception):\s
    | \bNo\s+space\s+left\s+on\s+device
    | ^(\S+:\s)?\S+:\s+(line\s+)?\d+:.*(not\s+found|Syntax\s+error)
    | ^Killed$ | ^make(\[\d+\])?:\s+\*\*\*
    """,
    re.X,
)
_KEY_ID = re.compile(r"(?:NO_PUBKEY|Missing key|key)\s+([0-9A-F]{8,40})")
_LIST = re.compile(
    r"(?:GPG error|verification failed|verification error):\s*([^\s:]+:\S+(?:\s+\S+)?)(?:\s+(?:In)?Release)"
)
_MISSING_WHEEL = re.compile(r"No matching distribution found for (\S+)")


def lines_of(chunks: Iterable[bytes]) -> Iterator[str]:
    """Cut chunks into lines; a byte that is not UTF-8 is shown as its escape, never a crash."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")
    rest = ""
    for chunk in chunks:
        rest += decoder.decode(chunk)
        *whole, rest = rest.replace("\r\n", "\n").split("\n")
        yield from whole
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest


def error_lines(lines: Sequence[str], most: int = MOST_LINES) -> list[str]:
    """Give the lines that name errors, the first ones first; without any, the last lines."""
    found = [line.rstrip() for line in lines if _ERROR.search(line)]
    unique = list(dict.fromkeys(found))
    if not unique:
        return [line.rstrip() for line in lines if line.strip()][-most:]
    hidden = len(unique) - most
    return unique if hidden <= 0 else [*unique[:most], f"... and {hidden} more"]


def advice(lines: Sequence[str]) -> str | None:
    """Give what to do about a failure that is known by its words: an apt key, a missing wheel."""
    text = "\n".join(lines)
    if key := _KEY_ID.search(text):
        where = _LIST.search(text)
        listed = f"the apt list {where[1]}" if where else "an apt list"
        return f"{listed} is signed by key {key[1]}, which is not trusted there: remove that list, or add its key"
    if wheel := _MISSING_WHEEL.search(text):
        return f"{wheel[1]} is in none of the places that pip looked into: ./inv lock, then ./inv fetch"
    return None
