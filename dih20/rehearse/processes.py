"""Start a server, wait until it answers, and be sure that it is gone afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from dih20.errors import RehearsalFailed
from dih20.rehearse.host_packages import find_program


class Server:
    """A child process in a session of its own that ends when this program ends, however it ends.

    It is given the open files `keeps`, to hold what they hold until it has ended itself.
    """

    def __init__(
        self, argv: Sequence[str], *, log: Path, name: str, keeps: Sequence[IO[str]] = ()
    ) -> None:
        program = find_program(argv[0])
        if program is None:
            raise RehearsalFailed(
                found=f"{argv[0]} not found",
                expected=f"the program for {name}",
                remedy="run `./inv rehearse`, which installs what is missing on Debian and Ubuntu as root",
            )
        self.name, self.log = name, log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                _ends_with_us([program, *argv[1:]]),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                pass_fds=[file.fileno() for file in keeps],
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, answers: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the server answers; its death or the deadline is an error with its last lines."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._raise(f"{self.name} ended with {self._process.returncode} while starting")
            if answers():
                return
            time.sleep(0.1)
        self.stop()
        self._raise(f"{self.name} did not answer within {timeout_s:.0f} s")

    def _raise(self, what: str) -> None:
        lines = self.log.read_text(errors="backslashreplace").splitlines()
        raise RehearsalFailed(
            found=f"{what}; its last lines:\n" + "\n".join(lines[-8:]),
            expected="a server that answers",
            remedy=f"read {self.log}, mend what it names, then run again",
        )

    def stop(self, timeout_s: float = 20.0) -> None:
        """TERM, a bounded wait, then KILL for the whole session."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout_s)


def _ends_with_us(argv: Sequence[str]) -> list[str]:
    """Give the command whose process gets TERM when we end: a rehearsal that is killed leaves no engine.

    The signal is only asked for once the child runs; when we have ended by then it has another parent.
    """
    only_below_us = '[ "$PPID" = "$1" ] || exit 1; shift; exec "$@"'
    return [
        "setpriv",
        "--pdeathsig",
        "TERM",
        "sh",
        "-c",
        only_below_us,
        "sh",
        str(os.getpid()),
        *argv,
    ]
