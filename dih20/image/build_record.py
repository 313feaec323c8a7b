"""Keep what a build took: an image in its normal form holds no time, so it cannot tell."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dih20.image.archive.partial import PartialFile
from dih20.paths import build_dir

if TYPE_CHECKING:
    from dih20.image.step_plan import StepPlan


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """One step of the last build: found or made, and how long making it took, then or earlier."""

    name: str
    key: str
    hit: bool
    why: str
    seconds: float | None


def step_time(plan: StepPlan, seconds: float) -> StepTime:
    """Give the time of a step as the build had it."""
    return StepTime(
        name=plan.step.name,
        key=plan.key,
        hit=plan.hit is not None,
        why=plan.why,
        seconds=round(seconds, 2),
    )


def record(identity: str, steps: list[StepTime], normalise_s: float) -> None:
    """Write down a build; a step that was found keeps the time of when it was made."""
    before = {key: seconds for key, seconds in _times().items() if seconds is not None}
    kept = [
        StepTime(**{**asdict(step), "seconds": before.get(step.key)}) if step.hit else step
        for step in steps
    ]
    times = {**before, **{step.key: step.seconds for step in kept if step.seconds is not None}}
    _write("step-times", times)
    _write(
        identity[:12],
        {"steps": [asdict(step) for step in kept], "normalise_s": round(normalise_s, 2)},
    )


def recorded(identity: str) -> tuple[dict[str, StepTime], float | None]:
    """Give the last build of an image on this machine: its steps by name, and the time of the last part."""
    found = _read(identity[:12])
    steps = {entry["name"]: StepTime(**entry) for entry in found.get("steps", [])}
    return steps, found.get("normalise_s")


def _times() -> dict[str, float | None]:
    return dict(_read("step-times"))


def _read(name: str) -> dict[str, Any]:
    try:
        found = json.loads((build_dir() / "image-builds" / f"{name}.json").read_text())
    except (OSError, ValueError):  # never built here, or broken off: nothing is known
        return {}
    return found if isinstance(found, dict) else {}


def _write(name: str, content: dict[str, Any]) -> None:
    with PartialFile(build_dir() / "image-builds" / f"{name}.json") as out:
        out.write(json.dumps(content, indent=1).encode())
