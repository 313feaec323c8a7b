"""Where things lie on the host, and what a run has done already."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dih20.errors import HostError, UsageError

MARK = ".di-bundle.json"


@dataclass(frozen=True)
class Layout:
    """The folder of the user's choice; everything written on the host is below it."""

    root: Path

    @property
    def mark(self) -> Path:
        return self.root / MARK

    @property
    def own(self) -> Path:
        return self.root / "own"

    @property
    def engine(self) -> Path:
        return self.root / "engine"

    @property
    def vendor_site(self) -> Path:
        return self.root / "site-vendor"

    @property
    def nccl(self) -> Path:
        return self.root / "site-nccl"

    @property
    def sources(self) -> Path:
        return self.root / "sources"

    @property
    def caches(self) -> Path:
        return self.root / "caches"

    def log(self, name: str) -> Path:
        folder = self.root / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.log"

    def claim(self, identity: str) -> None:
        """Take the folder for a bundle; one that holds another bundle, or anything else, is refused."""
        if self.mark.is_file():
            found = str(json.loads(self.mark.read_text())["identity"])
            if found != identity:
                raise HostError(
                    found=f"{self.root} holds another bundle ({found[:12]})",
                    expected=f"bundle {identity[:12]}, an empty folder or none",
                    remedy="name another folder with --into; nothing was changed",
                )
            return
        if self.root.exists() and (not self.root.is_dir() or any(self.root.iterdir())):
            raise HostError(
                found=f"{self.root} is there and was not made by a bundle",
                expected="an empty folder or none",
                remedy="name another folder with --into; nothing was changed",
            )
        self.root.mkdir(parents=True, exist_ok=True)
        self._write({"identity": identity, "done": {}})

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let one run at a time work in the folder; a second one is refused at once."""
        with (self.root / ".guard").open("w") as guard:
            try:
                fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as fault:
                raise HostError(
                    found=f"another run.sh installs into {self.root} right now",
                    expected="one at a time",
                    remedy="wait for it, then run the same command again",
                ) from fault
            yield

    def require(self) -> str:
        """Give the identity of the bundle that lies here."""
        if not self.mark.is_file():
            raise UsageError(
                found=f"no bundle in {self.root}",
                expected="the folder that run.sh was given with --into",
                remedy="correct --into, or install first: sh run.sh --into FOLDER --no-check",
            )
        return str(json.loads(self.mark.read_text())["identity"])

    def is_done(self, step: str, key: str) -> bool:
        """Say whether a step was done with the same inputs."""
        return bool(self._read()["done"].get(step) == key)

    def done(self, step: str, key: str) -> None:
        state = self._read()
        state["done"][step] = key
        self._write(state)

    def _read(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.mark.read_text())
        return state

    def _write(self, state: Mapping[str, Any]) -> None:
        fresh = self.mark.with_suffix(".fresh")
        fresh.write_text(json.dumps(state, indent=1, sort_keys=True) + "\n")
        fresh.replace(self.mark)
