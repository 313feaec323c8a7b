"""Why a build failed: read its log, find the compiler's own lines, tell a kill from a crash.

Build tools hide the cause: ninja says only that it stopped. The signs looked for are exit codes
137 and 139 (128 + signal) and the words of gcc, nvcc, ninja, the shell and Python about signals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dih20.errors import CompilerCrash, CompilerKilled, WheelError
from dih20.image.output_lines import MOST_LINES, error_lines
from dih20.paths import shown
from dih20.wheels.jobs import Jobs

_KILLED = re.compile(
    r"died due to signal 9\b|Killed signal terminated program|\[code=137\]|exit(?:ed)?(?: with)?(?: status| code)? (?:137|-9)\b"
    r"|^\S*:? ?(?:line \d+: +\d+ )?Killed\b|failed: Killed|signal 9\b|SIGKILL"
)
_CRASHED = re.compile(
    r"died due to signal 11\b|internal compiler error|\[code=139\]|exit(?:ed)?(?: with)?(?: status| code)? (?:139|-11)\b"
    r"|Segmentation fault|signal 11\b|SIGSEGV"
)
# What pip wraps around the message that matters.
_NOISE = re.compile(
    r"-Werror|subprocess-exited-with-error|metadata-generation-failed|This error originates|Can not execute `setup.py`"
    r"|ERROR: Failed (?:building|to build)|See above for output|did not run successfully|^ERROR: Can not"
)
_SOURCE = re.compile(r"([\w./+-]+\.(?:cu|cpp|cc|cxx|c))(?![\w.])")
_MOST_SIGNS = 3


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What the log of a failed build says."""

    exit_code: int
    killed: bool
    crashed: bool
    file: str | None
    lines: tuple[str, ...]


def read_failure(log: Iterable[str], exit_code: int) -> Failure:
    """Find the signs of a kill or a crash, the file it happened to, and the error lines."""
    lines = [line.rstrip("\n") for line in log]
    killed = next((i for i, line in enumerate(lines) if _KILLED.search(line)), None)
    crashed = next((i for i, line in enumerate(lines) if _CRASHED.search(line)), None)
    sign = crashed if crashed is not None else killed
    return Failure(
        exit_code=exit_code,
        killed=crashed is None and (killed is not None or exit_code == 137),
        crashed=crashed is not None or exit_code == 139,
        file=_file_near(lines, sign) if sign is not None else None,
        lines=tuple(_shown_lines(lines)),
    )


def _file_near(lines: list[str], sign: int) -> str | None:
    """Give the source file named in the sign's line, else in the nearest failed command around it."""
    around = [lines[sign], *lines[sign + 1 : sign + 4], *reversed(lines[max(0, sign - 20) : sign])]
    for line in around:
        if found := _SOURCE.findall(line):
            return str(found[-1])
    return None


def _shown_lines(lines: list[str]) -> list[str]:
    """Give the signs of a kill or crash, then the error lines; without any, the end of the log."""
    text = [line.strip()[:300] for line in lines if line.strip() and not _NOISE.search(line)]
    signs = [line for line in text if _KILLED.search(line) or _CRASHED.search(line)]
    return list(dict.fromkeys([*signs[:_MOST_SIGNS], *error_lines(text)]))[: MOST_LINES + 1]


def as_error(failure: Failure, *, name: str, jobs: Jobs, nvcc: str, log: Path) -> WheelError:
    """Give the error for a failed build: a kill, a crash or a plain failure."""
    lines = "\n  ".join(failure.lines) or "the log is empty"
    where = f" while it compiled {failure.file}" if failure.file else ""
    if failure.crashed:
        return CompilerCrash(
            found=f"{name}: compiler crash{where} ({nvcc}), exit {failure.exit_code}\n  {lines}",
            expected="a compiler that ends with a message; fewer jobs do not change this",
            remedy=f"build with another nvcc release or change that file; the full log is {shown(log)}",
        )
    if failure.killed:
        return CompilerKilled(
            found=f"{name}: compiler killed{where}, likely for memory: {jobs.why}\n  {lines}",
            expected=f"about {jobs.memory_per_job_gb:g} GB for each of {jobs.count} job(s) beside a margin",
            remedy=f"raise the memory limit (--memory GB) or lower --jobs; the full log is {shown(log)}",
        )
    return WheelError(
        found=f"{name}: the build exited {failure.exit_code}\n  {lines}",
        expected="a wheel",
        remedy=f"read the full log {shown(log)}, mend what the lines above name, then build again",
    )
