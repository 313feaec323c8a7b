"""Which package indexes are in force: configs/mirrors.yaml, else what pip itself would ask.

No index is named in this repository. Without configuration the answer comes from pip: its
environment variables, its configuration files, and the default that pip carries inside.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from dih20.config.mirrors import Mirrors
from dih20.errors import FetchError

_SECTIONS = ("global", "install", "download", ":env:")  # later ones win, as in pip


@dataclass(frozen=True, kw_only=True)
class PipSettings:
    """What pip is told: the indexes in order, where they were set, and its CA bundle and proxy."""

    indexes: tuple[str, ...]
    source: str
    ca_bundle: str | None = None
    proxy: str | None = None


def effective_settings(mirrors: Mirrors) -> PipSettings:
    """Give the indexes to ask, in order, and say who declared them."""
    pip = _pip_configuration()
    ca_bundle, proxy = pip.get("cert"), pip.get("proxy")
    if mirrors.pip.indexes:
        return PipSettings(
            indexes=mirrors.pip.indexes,
            source="configs/mirrors.yaml",
            ca_bundle=ca_bundle,
            proxy=proxy,
        )
    if pip.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        raise FetchError(
            found="pip is configured with no-index",
            expected="an index to ask",
            remedy="list indexes in configs/mirrors.yaml (pip: indexes:), or take no-index out of pip's configuration",
        )
    first = pip.get("index-url") or _pip_default()
    extra = pip.get("extra-index-url", "").split()
    said = "pip's configuration" if "index-url" in pip else "pip's own default"
    indexes = tuple(dict.fromkeys(url.rstrip("/") for url in (first, *extra)))
    return PipSettings(indexes=indexes, source=said, ca_bundle=ca_bundle, proxy=proxy)


@cache
def _pip_configuration() -> dict[str, str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise FetchError(
            found=f"`pip config list` exited {done.returncode}: {done.stderr.strip()[-300:]}",
            expected="pip in the environment of this program, to say which index is in force",
            remedy="install pip there, or list the indexes in configs/mirrors.yaml",
        )
    return parse_configuration(done.stdout)


def parse_configuration(text: str) -> dict[str, str]:
    """Read the lines of `pip config list` into one mapping; what is more specific wins."""
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in found:
            found[section][name] = str(ast.literal_eval(value))
    merged: dict[str, str] = {}
    for section in _SECTIONS:
        merged |= found[section]
    return merged


def _pip_default() -> str:
    """Give the index that pip asks when nothing is configured, as pip itself names it."""
    code = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ},
    )
    if done.returncode != 0:
        raise FetchError(
            found="this version of pip does not say its default index",
            expected="an index to ask",
            remedy="list the indexes in configs/mirrors.yaml (pip: indexes:)",
        )
    return done.stdout.strip()
