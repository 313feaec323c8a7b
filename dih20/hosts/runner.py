"""Run a command: one interface, whether it runs here, over SSH or in a test.

A command is a list of arguments; a runner quotes it once where a shell stands in between. What
comes back is an object that holds the command, the exit code and both streams as bytes.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dih20.errors import CommandFailed


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a finished command left behind."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def text(self) -> str:
        """Give stdout as text; bytes that are not UTF-8 are shown, never dropped."""
        return self.stdout.decode("utf-8", errors="backslashreplace")

    def last_lines(self, count: int = 10) -> str:
        """Give the end of stderr, or of stdout when stderr is empty."""
        text = (self.stderr or self.stdout).decode("utf-8", errors="backslashreplace")
        return "\n".join(text.rstrip().splitlines()[-count:])


class Runner(Protocol):
    """Where commands run. `name` is what messages call the place."""

    name: str

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> Result:
        """Run to the end; with check, a non-zero exit raises CommandFailed with the last lines."""
        ...


def checked(result: Result, where: str) -> Result:
    """Give the result back, or raise CommandFailed that carries its exit code and last lines."""
    if result.ok:
        return result
    raise CommandFailed(
        found=f"on {where}: `{shlex.join(result.argv)}` exited {result.exit_code}\n{result.last_lines()}",
        expected="exit code 0",
        remedy="run the command by hand on that machine to see it fail, mend what it names, then repeat",
    )


def run_all(
    runner: Runner, commands: Sequence[Sequence[str]], *, timeout_s: float = 60.0
) -> list[Result]:
    """Run commands in order and stop at the first that fails; its exit code is in the error."""
    done: list[Result] = []
    for number, argv in enumerate(commands, start=1):
        result = runner.run(argv, timeout_s=timeout_s, check=False)
        if not result.ok:
            raise CommandFailed(
                found=f"on {runner.name}: command {number} of {len(commands)}, `{shlex.join(argv)}`, "
                f"exited {result.exit_code}; the rest was not run\n{result.last_lines()}",
                expected="exit code 0 from each command",
                remedy="run that command by hand on that machine, mend what it names, then repeat",
            )
        done.append(result)
    return done


class LocalRunner:
    """Run commands on this machine, without a shell."""

    name = "this machine"

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> Result:
        import os

        started = time.monotonic()
        full_env = {**os.environ, **env} if env is not None else None
        try:
            done = subprocess.run(
                list(argv),
                input=stdin,
                env=full_env,
                timeout=timeout_s,
                capture_output=True,
                check=False,
            )
        except FileNotFoundError:
            missing = Result(
                argv=tuple(argv), exit_code=127, stderr=f"{argv[0]}: not found".encode()
            )
            return checked(missing, self.name) if check else missing
        except subprocess.TimeoutExpired as late:
            raise CommandFailed(
                found=f"on {self.name}: `{shlex.join(argv)}` was still running after {timeout_s:.0f} s",
                expected=f"an end within {timeout_s:.0f} s",
                remedy="see what it waits for by running it by hand, then repeat",
            ) from late
        result = Result(
            argv=tuple(argv),
            exit_code=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            seconds=time.monotonic() - started,
        )
        return checked(result, self.name) if check else result
