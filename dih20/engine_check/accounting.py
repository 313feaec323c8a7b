"""Records of stages in which an engine's process died, or was over its limit."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

from dih20.engine_check import results
from dih20.engine_check.hypotheses import HYPOTHESES, Hypothesis
from dih20.engine_check.processes import Ended
from dih20.engine_check.sources import engine_folder
from dih20.engine_check.stage_faults import BROKE, NOT_TRIED, SEEN, STOPPED, part_path
from dih20.engine_check.worker import START
from dih20.paths import REPOSITORY

# What a kernel, or a library behind one, says of values that are not finite or of memory that is not
# its own. Whichever call comes first after the kernel tells of it, so a product of cuBLAS may.
_OF_THE_GPU = re.compile(
    r"CUDA error|CUDA_ERROR|device-side assert|illegal memory access|misaligned address"
    r"|cublas(lt)? error|CUBLAS_STATUS|failed to launch on the GPU|unspecified launch failure"
    r"|CUDA driver error|CUDA runtime error|nccl error|ncclUnhandledCudaError"
    r"|\bnan\b|\binf\b|not finite",
    re.IGNORECASE,
)
_PACKAGES = re.compile(r"(/[^/\s\"']+)+/(site|dist)-packages/")


def account(how: Ended, work: Path, here: dict[str, Any]) -> Hypothesis | None:
    """Write what became of the stage in which a worker was; give the fault that ended it, if one did."""
    if not how.broke:
        return None
    letter, at = how.stage, how.part or how.stage
    fault = next((each for each in HYPOTHESES if letter == "h" and each.name == how.part), None)
    if fault is not None:
        _stopped(fault, how, work, here)
        return fault
    if how.fault:  # an engine for one fault, which was not sound before the fault was on
        part = {"name": how.fault, "verdict": NOT_TRIED, "why": f"at {at}: {_why(how)}"}
        results.write_json(part_path(work, how.fault), part)
        return None
    if letter == START:
        without = [each for each in how.letters if not results.record_path(work, each).exists()]
        letter, at = (
            (without or list(how.letters) or ["b"])[0],
            "its start: the engine did not start",
        )
    elif results.read_json(results.record_path(work, letter)) is not None and not how.late:
        return None  # the worker has written why
    verdict = results.LATE if how.late else results.DIED
    record = results.record(letter, verdict, here=here, reason=f"at {at}: {_why(how)}")
    results.write_json(results.record_path(work, letter), record)
    return None


def _stopped(fault: Hypothesis, how: Ended, work: Path, here: dict[str, Any]) -> None:
    """A fault that ended its engine: that is its symptom, unless it had its result already."""
    path = part_path(work, fault.name)
    if (results.read_json(path) or {}).get("sources") == here["sources"]:
        return
    result = {
        "id": fault.id,
        "name": fault.name,
        "fault": fault.fault,
        "predicted": fault.predicted,
        "sources": here["sources"],
        "verdict": _verdict(fault, how),
        "stopped": True,
        "why": _why(how)[-1000:],
    }
    results.write_json(path, result)


def _verdict(fault: Hypothesis, how: Ended) -> str:
    """SEEN and STOPPED are the GPU's doing, or a limit's; an exception of ours is BROKE."""
    by_gpu = (how.code < 0 and how.code != -signal.SIGKILL) or bool(_OF_THE_GPU.search(how.tail))
    if how.late:
        return STOPPED
    if not by_gpu:
        return BROKE
    return SEEN if fault.may_stop else STOPPED


def _why(how: Ended) -> str:
    what = "over its time limit" if how.late else f"exit code {how.code}"
    return f"{what}; the log ends: {without_folders(how.tail)}"


def without_folders(text: str) -> str:
    """Cut from file names where things are installed: a record is read on other machines."""
    for folder in filter(None, (engine_folder(), REPOSITORY)):
        text = text.replace(f"{folder}/", "")
    return _PACKAGES.sub("", text)
