"""Which apt mirrors hold a suite: configs/mirrors.yaml, else this machine's own apt sources.

A machine of another distribution has no source for the suite; then the default mirror that
debootstrap carries for it is taken. No mirror is named in this repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dih20.config.mirrors import Mirrors
from dih20.errors import FetchError

FAMILIES = {
    "debian": ("bullseye", "bookworm", "trixie", "forky", "stable", "testing", "sid", "unstable"),
    "ubuntu": ("focal", "jammy", "noble", "plucky", "questing", "resolute"),
}
_DEBOOTSTRAP = Path("/usr/sbin/debootstrap")
_SCRIPTS = Path("/usr/share/debootstrap/scripts")


@dataclass(frozen=True, kw_only=True)
class AptMirrors:
    """The roots (what stands before /dists and /pool) to ask in order, and who declared them."""

    roots: tuple[str, ...]
    source: str


def apt_mirrors(mirrors: Mirrors, suite: str, *, etc: Path = Path("/etc/apt")) -> AptMirrors:
    """Give the mirrors that hold a suite's packages."""
    if given := mirrors.apt.get(suite):
        return AptMirrors(roots=given, source="configs/mirrors.yaml")
    roots = tuple(
        dict.fromkeys(root for root, of in _machine_sources(etc) if _same_family(suite, of))
    )
    if roots:
        return AptMirrors(roots=roots, source="this machine's apt sources")
    if default := _debootstrap_default(suite):
        return AptMirrors(roots=(default,), source="debootstrap's default")
    raise FetchError(
        found=f"no apt mirror is known for the suite {suite!r}",
        expected="one in configs/mirrors.yaml, in this machine's apt sources, or debootstrap's default",
        remedy=f"list a mirror under apt: {suite}: in configs/mirrors.yaml",
    )


def family(suite: str) -> str | None:
    """Give the distribution that a suite belongs to."""
    name = suite.split("-", 1)[0]
    return next((family for family, suites in FAMILIES.items() if name in suites), None)


def _same_family(suite: str, other: str) -> bool:
    if other.endswith("-security") or "/" in other:
        return False
    return other.split("-", 1)[0] == suite or (
        family(suite) is not None and family(suite) == family(other)
    )


def _machine_sources(etc: Path) -> Iterator[tuple[str, str]]:
    """Give (root, suite) pairs of the `deb` sources, in the order apt reads them."""
    listed = sorted((etc / "sources.list.d").glob("*")) if (etc / "sources.list.d").is_dir() else []
    for path in [etc / "sources.list", *listed]:
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        if path.suffix == ".sources":
            yield from _deb822(text)
        elif path.suffix in (".list", ""):
            yield from _one_line(text)


def _deb822(text: str) -> Iterator[tuple[str, str]]:
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line for line in paragraph.splitlines() if not line.startswith("#")]
        joined = re.sub(r"\n[ \t]+", " ", "\n".join(lines))
        fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", joined, flags=re.M))
        if (
            fields.get("Enabled", "yes").lower() == "no"
            or "deb" not in fields.get("Types", "").split()
        ):
            continue
        for root in fields.get("URIs", "").split():
            for suite in fields.get("Suites", "").split():
                yield root.rstrip("/"), suite


def _one_line(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+\S", line)
        if match:
            yield match[1].rstrip("/"), match[2]


def _debootstrap_default(suite: str) -> str | None:
    """Read the default mirror out of debootstrap: its own for Debian, its suite script's for others."""
    if family(suite) == "debian":
        path, pattern = _DEBOOTSTRAP, r"^DEF_MIRROR=[\"']?([^\"'\s]+)"
    else:
        script = _SCRIPTS / suite
        path = (
            script if script.is_file() else _SCRIPTS / "gutsy"
        )  # what every Ubuntu suite links to
        pattern = r"\*\)\s*default_mirror\s+(\S+)"
    matches = re.findall(pattern, path.read_text(), flags=re.M) if path.is_file() else []
    return str(matches[0]).rstrip("/") if matches else None
