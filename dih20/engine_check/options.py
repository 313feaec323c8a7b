"""What a run of the check is told, by command line or task."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dih20.paths import build_dir

PATHS = ("work", "prepared", "checkpoint", "tree", "upstream")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every field is an option of the same name; dashes for underscores.

    Paths are taken from the folder that the check is started in; its processes run in another.
    """

    stage: str = ""
    work: str = ""
    prepared: str = ""
    checkpoint: str = ""
    tree: str = ""
    upstream: str = ""
    again: bool = False
    together: int = 4
    memory: float = 0.9
    only: str = ""
    take: int = 12
    workers: int = 3
    limits: float = 1.0
    tests_limit: int = 300
    parallel: bool = False

    def __post_init__(self) -> None:
        for name in PATHS:
            if value := getattr(self, name):
                object.__setattr__(self, name, str(Path(value).expanduser().resolve()))

    @property
    def folder(self) -> Path:
        return Path(self.work) if self.work else build_dir() / "engine-check"

    @property
    def reference(self) -> Path:
        return Path(self.prepared) if self.prepared else self.folder / "reference.json"

    @property
    def tree_folder(self) -> Path | None:
        return Path(self.tree) if self.tree else None

    def as_arguments(self) -> list[str]:
        """Give the command line that makes these options again."""
        given: list[str] = []
        for name, value in asdict(self).items():
            flag = f"--{name.replace('_', '-')}"
            if value is True:
                given.append(flag)
            elif value not in (False, ""):
                given += [flag, str(value)]
        return given


HELP = {
    "stage": "letters: c, b,e or b-f; all without it",
    "work": "folder for records, logs and dumps; build/engine-check",
    "prepared": "the reference's values, as --prepare wrote them",
    "checkpoint": "the canary with its vision shard; made in the work folder without it",
    "tree": "folder that holds the package deepinfer; the imported one without it",
    "upstream": "folder that holds DeepGEMM's tests (stage a)",
    "again": "also stages that passed with these very sources",
    "together": "engines at once on the GPU, when faults need engines of their own (stage h)",
    "memory": "share of the GPU's memory for one engine",
    "only": "part of a fault's name (stage h) or of a test file's (stage a)",
    "take": "one in so many of upstream's tests in each file (stage a); 1 runs all",
    "workers": "test files at once (stage a); 3 at most",
    "limits": "factor on every time limit",
    "tests_limit": "seconds for upstream's tests (stage a)",
    "parallel": "stages b-f and h, g, and a beside each other",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for field in fields(Options):
        flag, default = f"--{field.name.replace('_', '-')}", field.default
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true", help=HELP[field.name])
        else:
            kind: Any = type(default)
            parser.add_argument(flag, type=kind, default=default, help=HELP[field.name])


def from_namespace(given: argparse.Namespace) -> Options:
    return Options(**{field.name: getattr(given, field.name) for field in fields(Options)})
