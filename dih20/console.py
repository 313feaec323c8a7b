"""What a task shows: a line per step with its duration, progress on long work, or one JSON object.

With --json the prose goes to stderr and stdout holds exactly one JSON object, so that both can be
read at once and never mix.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from dih20.errors import ToolError
from dih20.plan import Plan

_LOG_WIDTH = 160
_SIGNS = {
    "ok": ("✓", "green"),
    "hit": ("=", "cyan"),
    "miss": ("+", "yellow"),
    "warn": ("!", "yellow"),
    "failed": ("✗", "red"),
    "not applicable": ("-", "dim"),
    "not run": ("-", "dim"),
}


@dataclass(kw_only=True)
class Step:
    """One line of output: verb, object, outcome, duration. A body may set status and note."""

    verb: str
    target: str
    status: str = "ok"
    note: str = ""
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "target": self.target,
            "status": self.status,
            "note": self.note,
            "seconds": round(self.seconds, 3),
            **self.details,
        }


class Console:
    """The one place that prints. Steps are kept, so that --json can give them back.

    Example:
        with ui.step("build", "layer 10-apt") as step:
            step.status, step.note = "hit", "script and inputs unchanged"
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.steps: list[Step] = []
        out = sys.stderr if as_json else sys.stdout
        # A log file has no width of its own; 80 columns would break every table cell.
        self._rich = RichConsole(
            file=out, highlight=False, width=None if out.isatty() else _LOG_WIDTH
        )

    @contextmanager
    def step(self, verb: str, target: str) -> Iterator[Step]:
        """Time a piece of work and print its line when it ends, also when it fails."""
        step = Step(verb=verb, target=target)
        started = time.monotonic()
        try:
            yield step
        except BaseException:
            step.status = "failed"
            raise
        finally:
            step.seconds = time.monotonic() - started
            self.steps.append(step)
            self._print_step(step)

    def _print_step(self, step: Step) -> None:
        sign, style = _SIGNS.get(step.status, ("·", ""))
        status = "" if step.status == "ok" else f"  {step.status}"
        note = f"  {step.note}" if step.note else ""
        line = Text.assemble(
            (f"{sign} ", style), f"{step.verb} {step.target}", (status, style), (note, "dim")
        )
        line.append(f"  {step.seconds:.1f} s", style="dim")
        self._rich.print(line, soft_wrap=True)

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print one line of prose."""
        self._rich.print(Text(text, style=style), soft_wrap=True)

    def raw(self, text: str) -> None:
        """Print text as it is: a diff keeps its tabs and its long lines."""
        self._rich.file.write(text)

    def warn(self, text: str) -> None:
        self._rich.print(Text(f"! {text}", style="yellow"), soft_wrap=True)

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = ""
    ) -> None:
        """Print a table; every cell is taken literally, without markup."""
        table = Table(*columns, title=title or None, title_justify="left")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self._rich.print(table)

    @contextmanager
    def progress(self, what: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
        """Show a byte progress bar while the body runs; the body calls advance(number_of_bytes)."""
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._rich, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda amount: bar.advance(task, amount)

    def plan(self, plan: Plan) -> None:
        """Print a plan, one line an action: + to do, = done already, ? not known."""
        self.line(plan.title)
        for action in plan.actions:
            why = f"   ({action.why})" if action.why else ""
            self.line(f"  {action.mark} {action.verb} {action.target}{why}")

    def fail(self, error: ToolError) -> None:
        """Print an error in its three parts."""
        self._rich.print(Text(f"error: {error.found}", style="bold red"), soft_wrap=True)
        self._rich.print(Text(f"  expected: {error.expected}"), soft_wrap=True)
        self._rich.print(Text(f"  next:     {error.remedy}"), soft_wrap=True)

    def finish(self, task: str, result: Any, error: ToolError | None = None) -> None:
        """With --json, write the one object: outcome, steps and result or error."""
        if not self.as_json:
            return
        out: dict[str, Any] = {"task": task, "ok": error is None}
        out["steps"] = [step.as_dict() for step in self.steps]
        if error is None:
            out["result"] = result
        else:
            out["error"] = error.as_dict()
        try:
            json.dump(out, sys.stdout, ensure_ascii=False, indent=2, default=str)
            sys.stdout.write("\n")
            sys.stdout.flush()
        except BrokenPipeError:  # the reader went away, as `| head` does: end quietly, not with 0
            RichConsole(file=sys.stdout).on_broken_pipe()
