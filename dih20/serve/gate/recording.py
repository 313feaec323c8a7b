"""Keep the ids of a run whose texts were right, with where they came from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dih20.errors import ServeError
from dih20.serve.gate.asking import Verdict
from dih20.serve.gate.questions import Recorded, Recording
from dih20.serve.state import write_json


def record(path: Path, verdict: Verdict, origin: dict[str, Any]) -> Recorded:
    """Write what the ranks answered; all ranks must have given the same ids.

    Args:
        verdict: of a gate that passed, so every text holds its expected string.
        origin: identities of what served: image, patchset, engine, checkpoint.
    """
    assert verdict.passed, f"a gate that is {verdict.state} is never recorded"
    recordings: dict[str, Recording] = {}
    for row in verdict.answers:
        recording = Recording(
            prompt_ids=tuple(row["prompt_ids"]),
            ids=tuple(row["ids"]),
            log_probs=tuple(round(value, 4) for value in row["log_probs"]),
        )
        first = recordings.setdefault(row["question"], recording)
        if first.ids != recording.ids:
            raise ServeError(
                found=f"rank {row['rank']} answers {row['question']!r} with other ids than rank 0: "
                f"{list(recording.ids)}, not {list(first.ids)}",
                expected="the same greedy answer of every rank",
                remedy="do not record; find out why the ranks differ",
            )
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(verdict.at))
    recorded = Recorded(
        origin={key: str(value) for key, value in origin.items()} | {"at": at},
        recordings=recordings,
    )
    try:
        write_json(path, recorded.model_dump(mode="json"))
    except OSError as fault:
        raise ServeError(
            found=f"{path}: {fault.strerror}",
            expected="a place to write the recorded answers to",
            remedy="correct gate.record_answers",
        ) from fault
    return recorded
