"""What a wheel is made from: named parts, one hash over them, and which part of two differs.

Two builds have one identity exactly when source (patched), recipe, procedure, allowed environment,
requirements, headers, toolchain, torch build and python tag are the same. The parts are kept beside the wheel, so that a miss can
say which of them changed.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

# Linters and tests leave these beside the sources; a clean clone has none, and the wheel is the same.
_TOOL_CACHES = (".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis")
_LEFT_OUT = {"__pycache__", ".git", "build", "dist", *_TOOL_CACHES}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that decides a wheel's content, each part as a short text."""

    source: str
    patchset: str
    recipe: str
    procedure: str
    environment: str
    requirements: str
    headers: str
    toolchain: str
    torch: str
    python_tag: str

    @property
    def identity(self) -> str:
        return digest_of(asdict(self))

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def differences(stored: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Name each part that differs, in the order of Parts, with both values where they say something."""
    lines = []
    for part, want in wanted.items():
        have = stored.get(part)
        if have == want:
            continue
        label = part.replace("_", " ")
        if have is None:
            lines.append(f"{label}: not recorded before")
        else:
            lines.append(f"{label}: {_short(have)} -> {_short(want)}")
    return lines


def digest_of(value: object) -> str:
    """Give the sha256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def tree_digest(root: Path) -> str:
    """Give the sha256 over a folder: relative names, executable bits, link targets and contents.

    Owners and times do not count; nor do .git, build output, egg-info and bytecode.
    """
    total = hashlib.sha256()
    for path in sorted(root.rglob("*"), key=lambda p: p.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        if any(part in _LEFT_OUT or part.endswith(".egg-info") for part in relative.parts):
            continue
        if path.is_symlink():
            kind, content = "l", str(path.readlink()).encode()
        elif path.is_file():
            kind = "x" if path.stat().st_mode & stat.S_IXUSR else "f"
            content = path.read_bytes()
        else:
            continue
        record = f"{kind} {relative.as_posix()} {hashlib.sha256(content).hexdigest()}\n"
        total.update(record.encode())
    return total.hexdigest()


def _short(text: str) -> str:
    is_hash = len(text) == 64 and all(c in "0123456789abcdef" for c in text)
    return text[:12] if is_hash else text
