"""The stages of a rehearsal: each timed, each with what it showed, and a table at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dih20.console import Console


@dataclass(kw_only=True)
class Stage:
    """One stage; the body sets `showed`, a line for the table."""

    name: str
    command: str
    status: str = "ok"
    showed: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "seconds": round(self.seconds, 2)}


@dataclass
class Stages:
    """Run stages one after the other and keep what they showed.

    Example:
        with stages.stage("fetch", "./inv fetch") as stage:
            stage.showed = "41 files"
    """

    ui: Console
    done: list[Stage] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, command: str) -> Iterator[Stage]:
        """Announce a stage with the command that does it on a real host, and time it."""
        self.ui.line()
        self.ui.line(f"── {name}   {command}", style="bold")
        stage = Stage(name=name, command=command)
        started = time.monotonic()
        try:
            yield stage
        except BaseException:
            stage.status = "failed"
            raise
        finally:
            stage.seconds = time.monotonic() - started
            self.done.append(stage)

    def table(self) -> None:
        """Print a line per stage with its time."""
        self.ui.line()
        rows = [[s.name, f"{s.seconds:.1f} s", s.status, s.showed] for s in self.done]
        total = sum(stage.seconds for stage in self.done)
        rows.append(["total", f"{total:.1f} s", "", ""])
        self.ui.table(["stage", "time", "outcome", "what it showed"], rows, title="rehearsal")
