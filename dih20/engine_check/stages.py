"""The stages: what each shows, which process runs it, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass

from dih20.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Stage:
    """limit_s: seconds for the stage itself; the first of a process may take START_S on top."""

    letter: str
    title: str
    worker: str
    limit_s: int


START_S = 240
STAGES = (
    Stage(letter="b", title="the canary loads with the checkpoint's weights", worker="eager", limit_s=60),
    Stage(letter="c", title="log-probs and answers", worker="eager", limit_s=90),
    Stage(letter="d", title="long prompts and mixed batches", worker="eager", limit_s=90),
    Stage(letter="e", title="every site against the reference", worker="eager", limit_s=120),
    Stage(letter="f", title="no synchronisation in a step", worker="eager", limit_s=60),
    Stage(letter="h", title="each suspected fault, switched on", worker="eager", limit_s=240),
    Stage(letter="g", title="captured graphs and overlapped scheduling equal eager", worker="graphs", limit_s=120),
    Stage(letter="a", title="upstream's own tests of its operators", worker="upstream", limit_s=300),
)  # fmt: skip
ORDER = "".join(stage.letter for stage in STAGES)
LETTERS = "abcdefgh"


def stage(letter: str) -> Stage:
    return next(each for each in STAGES if each.letter == letter)


def chosen(text: str) -> tuple[Stage, ...]:
    """Give the stages of "", "c", "b,e" or "b-f", in the order in which they run."""
    wanted: set[str] = set()
    for part in text.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if not part:
            continue
        if first not in LETTERS or (last or first) not in LETTERS or len(first) != 1:
            raise UsageError(
                found=f"--stage {text}",
                expected=f"letters of {LETTERS[0]}-{LETTERS[-1]}, as c, b,e or b-f",
                remedy="correct it, or leave it out to run all",
            )
        wanted |= set(LETTERS[LETTERS.index(first) : LETTERS.index(last or first) + 1])
    return tuple(each for each in STAGES if not text or each.letter in wanted)
