"""A worker process under a time limit for each of its stages; it and its children end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dih20.engine_check.results import read_json
from dih20.engine_check.worker import CLOSE, START, now_path
from dih20.paths import REPOSITORY

COMMAND = (sys.executable, "-m", "dih20.engine_check")
_POLL_S = 0.2
_TAIL = 2500


STOP = threading.Event()


def check_stop() -> None:
    """Raise KeyboardInterrupt in whatever thread waits, once the check was told to stop."""
    if STOP.is_set():
        raise KeyboardInterrupt


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a worker ended. late: it was over its limit and was killed; stage, part: where it was.

    name: of the process. letters: the stages that it was to run. fault: the one fault that it was
    started for, "" for an engine that stages share.
    """

    code: int
    late: bool
    stage: str
    part: str
    tail: str
    name: str = ""
    letters: str = ""
    fault: str = ""

    @property
    def broke(self) -> bool:
        """Whether it ended otherwise than by having done its work."""
        return (self.code != 0 or self.late) and self.stage != CLOSE


class WorkerProcess:
    """limit_of(stage): seconds that the stage may take, START included."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        name: str,
        work: Path,
        environment: Mapping[str, str],
        limit_of: Callable[[str], float],
        letters: str = "",
        fault: str = "",
    ) -> None:
        self.name, self.work, self.limit_of = name, work, limit_of
        self.letters, self.fault = letters, fault
        self.log = work / f"log-{name}.txt"
        now_path(work, name).unlink(missing_ok=True)
        self._begun = time.time()
        with self.log.open("ab") as log:  # what an earlier engine of this name said stays
            self._log_from = log.tell()
            self._process = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=REPOSITORY,
                env=dict(environment),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def doing(self) -> dict[str, Any]:
        """Give the stage and part that run now, and since when."""
        found = read_json(now_path(self.work, self.name))
        return found or {"stage": START, "part": "", "since": self._begun}

    def poll(self) -> Ended | None:
        """Give how it ended, None while it runs within its limit."""
        code = self._process.poll()
        now = self.doing()
        late = time.time() - float(now["since"]) > self.limit_of(str(now["stage"]))
        if code is None and not late:
            return None
        self.kill()
        return Ended(
            code=self._process.wait() if code is None else code,
            late=code is None,
            stage=str(now["stage"]),
            part=str(now["part"]),
            tail=self.tail(),
            name=self.name,
            letters=self.letters,
            fault=self.fault,
        )

    def kill(self) -> None:
        """End the process and everything that it started; it leads a session of its own."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()

    def tail(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(self.log.stat().st_size - _TAIL, self._log_from))
            return log.read().decode(errors="replace")


def wait_all(
    processes: Sequence[WorkerProcess], each_round: Callable[[], None] = lambda: None
) -> list[Ended]:
    """Wait until all have ended; each_round is called while they run."""
    ended: dict[int, Ended] = {}
    try:
        while len(ended) < len(processes):
            for place, process in enumerate(processes):
                if place not in ended and (how := process.poll()) is not None:
                    ended[place] = how
            each_round()
            check_stop()
            time.sleep(_POLL_S)
    finally:
        for process in processes:
            process.kill()
    return [ended[place] for place in range(len(processes))]
