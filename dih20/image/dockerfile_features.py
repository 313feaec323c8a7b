"""Find what a Dockerfile asks of BuildKit; the engine's classic builder refuses or, worse, ignores it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FLAGS = {
    "RUN": ("mount", "network", "security"),
    "COPY": ("link", "chmod", "parents", "exclude"),
    "ADD": ("link", "chmod", "checksum", "keep-git-dir", "exclude", "unpack"),
}
_HEREDOC = re.compile(r"(?<!<)<<-?\s*([\"']?)([A-Za-z_][A-Za-z0-9_]*)\1")


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One use of a BuildKit feature."""

    line: int
    name: str
    text: str


def buildkit_features(text: str) -> list[Feature]:
    """Give every use, in order of lines."""
    return list(_features(text.splitlines()))


def _features(lines: list[str]) -> Iterator[Feature]:
    for number, line in enumerate(lines, 1):
        if not re.match(r"#\s*\w+\s*=", line):
            break  # parser directives stand before everything else
        if re.match(r"#\s*(syntax|check)\s*=", line, re.I):
            yield Feature(line=number, name="# syntax", text=line.strip())
    for number, instruction in instructions(lines):
        keyword, rest = _keyword(instruction)
        if keyword == "ONBUILD":  # what it holds is run by a build on top of this image
            keyword, rest = _keyword(rest)
        for flag in re.findall(r"(?:^|\s)--([a-z-]+)(?=[=\s]|$)", _leading_flags(rest)):
            if flag in _FLAGS.get(keyword, ()):
                yield Feature(line=number, name=f"{keyword} --{flag}", text=instruction[:120])
        if keyword in ("RUN", "COPY", "ADD") and _HEREDOC.search(rest):
            yield Feature(line=number, name="heredoc", text=instruction[:120])


def _keyword(instruction: str) -> tuple[str, str]:
    keyword, rest = [*instruction.split(maxsplit=1), "", ""][:2]
    return keyword.upper(), rest


def _leading_flags(rest: str) -> str:
    match = re.match(r"\s*(?:--\S+\s*)*", rest)
    return match[0] if match else ""


def instructions(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Give (line number, instruction) with continued lines joined and comments left out."""
    joined, start = "", 0
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if stripped.startswith("#") or not (stripped or joined):
            continue
        start = start or number
        if stripped.endswith("\\"):
            joined += stripped[:-1].rstrip() + " "
            continue
        yield start, joined + stripped
        joined, start = "", 0
    if joined:
        yield start, joined.strip()
