"""Why a build failed: read its log, find the compiler's own lines, tell a kill from a crash.

Build tools hide the cause: ninja says only that it stopped. The signs looked for are exit codes
137 and 139 (128 + signal) and the words of gcc, nvcc, ninja, the shell and Python about signals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dih20.errors import CompilerCrash, CompilerKilled, WheelError
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
_ERROR = re.compile(
    r"\berror\b\s*[:#]|\berror:|fatal error|undefined reference|cannot find -l|No such file or directory"
    r"|^\S+Error: |ptxas fatal|nvcc fatal|No space left on device|unsupported GNU version",
    re.IGNORECASE,
)
_NOISE = re.compile(
    r"-Werror|error: subprocess-exited-with-error|metadata-generation-failed|This error originates"
)
_SOURCE = re.compile(r"([\w./+-]+\.(?:cu|cpp|cc|cxx|c))(?![\w.])")
_MOST_LINES = 12


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
        lines=tuple(_error_lines(lines)),
    )


def _file_near(lines: list[str], sign: int) -> str | None:
    """Give the source file named in the sign's line, else in the nearest failed command around it."""
    around = [lines[sign], *lines[sign + 1 : sign + 4], *reversed(lines[max(0, sign - 20) : sign])]
    for line in around:
        if found := _SOURCE.findall(line):
            return str(found[-1])
    return None


def _error_lines(lines: list[str]) -> Iterator[str]:
    seen: set[str] = set()
    for line in lines:
        text = line.strip()
        if not text or len(seen) == _MOST_LINES or text in seen or len(text) > 2000:
            continue
        if (
            _ERROR.search(text) or _KILLED.search(text) or _CRASHED.search(text)
        ) and not _NOISE.search(text):
            seen.add(text)
            yield text[:300]


def as_error(failure: Failure, *, name: str, jobs: Jobs, nvcc: str, log: Path) -> WheelError:
    """Give the error for a failed build: a kill, a crash or a plain failure."""
    lines = "\n  ".join(failure.lines) or "no line of the log looks like an error"
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
