"""Start the check's own processes: an engine for stages, or the comparison of dumps."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from dih20.engine_check.engine_environment import environment
from dih20.engine_check.options import Options
from dih20.engine_check.processes import WorkerProcess
from dih20.engine_check.stages import START_S, stage
from dih20.engine_check.worker import CLOSE, START

Say = Callable[[str], None]
_JUDGE_S = 600
_CLOSE_S = 30


class Launcher:
    """Processes that get the options of one run."""

    def __init__(self, options: Options, say: Say) -> None:
        self.options, self.say = options, say

    def engine(self, worker: str, letters: Sequence[str], fault: str = "") -> WorkerProcess:
        """Start an engine for stages. fault: the one fault of stage h that it is for."""
        name = f"{worker}-{fault}" if fault else worker
        self.say(f"starting an engine ({name}) for {', '.join(letters)}")
        arguments = ["--worker", worker, "--letters", "".join(letters), "--name", name]
        return WorkerProcess(
            [*arguments, *(["--faults", fault] if fault else []), *self.options.as_arguments()],
            name=name,
            letters="".join(letters),
            fault=fault,
            work=self.options.folder,
            environment=environment(worker, os.environ),
            limit_of=self._limit,
        )

    def judge(self) -> WorkerProcess:
        """Start the comparison of dumps on the CPU, beside what runs on the GPU."""
        return WorkerProcess(
            ["--judge", *self.options.as_arguments()],
            name="judge",
            work=self.options.folder,
            environment={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "4"},
            limit_of=lambda _: _JUDGE_S * self.options.limits,
        )

    def _limit(self, letter: str) -> float:
        seconds = {START: START_S, CLOSE: _CLOSE_S}.get(letter) or stage(letter).limit_s
        return seconds * self.options.limits
