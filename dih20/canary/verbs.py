"""What `inv canary` does, verb by verb."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dih20.console import Console
from dih20.errors import ConfigError, TestsFailed, UsageError
from dih20.groups import ensure

if TYPE_CHECKING:
    from v41.canary.answering import Canary
    from v41.numerics import Mode

MODES = ("exact", "trained", "sm90")
VERBS = ("check", "ablate", "train", "vision-shard")
FACTS_NEEDED = 0.9  # share of facts far back that must be right
FLIPS_NEEDED = 3


def check(ui: Console, mode: str, folder: str, seed: int) -> dict[str, Any]:
    """Print every answer; fail on a wrong fixed answer, or on too many wrong facts."""
    from dih20.serve.gate.degenerate import degenerate_log_probs

    canary = _load(ui, mode, folder)
    from v41.canary.answering import answer_facts, answer_questions, wrong
    from v41.canary.facts import fact_context

    with ui.step("ask", "fixed questions"):
        fixed = answer_questions(canary)
    with ui.step("ask", "facts more than 600 tokens back"):
        facts = answer_facts(canary, fact_context(seed))
    answers = fixed + facts
    rows = [
        (a.question, a.expected, a.got, f"{a.log_prob:.3f}", "yes" if a.right else "NO")
        for a in answers
    ]
    ui.table(("question", "expected", "got", "log-prob", "right"), rows, title=f"mode {mode}")
    share = 1 - len(wrong(facts)) / len(facts)
    bad = wrong(fixed)
    if reason := degenerate_log_probs([answer.log_prob for answer in fixed]):
        raise TestsFailed(
            found=f"degenerate answers: {reason}",
            expected="log-probs that differ from question to question, at temperature 1",
            remedy="look for NaN or constant logits: `./inv parity compare` with a healthy dump",
        )
    if bad or share < FACTS_NEEDED:
        first = (bad or wrong(facts))[0]
        raise TestsFailed(
            found=f"{len(bad)} of {len(fixed)} fixed answers wrong and {share:.0%} of facts right; "
            f"the first wrong: {first.question!r} -> {first.got!r}",
            expected=f"all fixed answers, and {FACTS_NEEDED:.0%} of the facts; {first.expected!r}",
            remedy="compare this mode with another by `./inv canary check --mode exact`",
        )
    return {"mode": mode, "fixed": len(fixed), "facts": len(facts), "facts_right": share}


def ablate(ui: Console, mode: str, folder: str, seed: int) -> dict[str, Any]:
    """Print how many answers each mechanism decides; fail if one decides too few."""
    canary = _load(ui, mode, folder)
    from v41.canary.ablation import ablate as run_ablations
    from v41.canary.facts import fact_context

    with ui.step("ask", "everything once per mechanism taken away"):
        flips = run_ablations(canary, fact_context(seed))
    rows = [(f.name, str(f.questions), str(f.facts), str(f.total)) for f in flips]
    ui.table(("taken away", "questions flipped", "facts flipped", "together"), rows)
    few = [f.name for f in flips if f.total < FLIPS_NEEDED]
    if few:
        raise TestsFailed(
            found=f"{', '.join(few)}: fewer than {FLIPS_NEEDED} answers flipped",
            expected=f"each mechanism decides at least {FLIPS_NEEDED} answers",
            remedy="docs/canary.md says which mechanisms decide what",
        )
    return {"mode": mode, "flips": {f.name: f.total for f in flips}}


def train(ui: Console, to: str, threads: int, *, only_plan: bool) -> dict[str, Any]:
    """Train into a new folder; the committed checkpoint is left alone."""
    target = _new_folder("train", to)
    if only_plan:
        ui.line(f"would train the canary into {target}: minutes on an idle CPU")
        return {"would_write": str(target)}
    ensure(ui, "torch")
    from v41.canary.train import main

    with ui.step("train", str(target)):
        main([str(target), "--threads", str(threads)])
    return {"written": str(target)}


def vision_shard(
    ui: Console, verb: str, folder: str, to: str, *, only_plan: bool
) -> dict[str, Any]:
    """Copy the canary to a new folder with the vision tensors that the engine demands."""
    if verb != "vision-shard":
        raise UsageError(
            found=f"no verb {verb!r}",
            expected=f"one of {', '.join(VERBS)}",
            remedy="./inv canary check",
        )
    target, source = _new_folder(verb, to), Path(folder) if folder else _committed()
    if only_plan:
        ui.line(f"would copy {source.name} to {target} with 0.8 GB of zeros as a sparse file")
        return {"would_write": str(target)}
    ensure(ui, "torch")
    from v41.canary.vision_shard import write_with_vision

    with ui.step("write", str(target)) as step:
        size = write_with_vision(source, target)
        step.note = f"vision shard of {size / 1e6:.0f} MB, sparse"
    return {"written": str(target), "vision_bytes": size}


def _new_folder(verb: str, to: str) -> Path:
    if not to:
        raise UsageError(
            found=f"{verb} needs --to",
            expected="a new folder to write the checkpoint to",
            remedy=f"./inv canary {verb} --to build/canary",
        )
    if Path(to).exists():
        raise UsageError(
            found=f"{to} exists already",
            expected="a folder that does not exist yet; nothing is overwritten",
            remedy="give another folder, or remove this one",
        )
    return Path(to)


def _committed() -> Path:
    from v41.canary import FOLDER

    return FOLDER


def _load(ui: Console, mode: str, folder: str) -> Canary:
    if mode not in MODES:
        raise UsageError(
            found=f"no mode {mode!r}", expected=f"one of {', '.join(MODES)}", remedy="correct it"
        )
    ensure(ui, "torch")
    import torch

    from v41.canary.answering import Canary
    from v41.errors import CheckpointError

    torch.set_num_threads(1)  # products are small: more threads wait longer than they work
    try:
        with ui.step("load", folder or "the committed canary"):
            return Canary.load(cast("Mode", mode), Path(folder) if folder else _committed())
    except CheckpointError as broken:
        raise ConfigError(
            found=broken.found, expected=broken.expected, remedy=broken.next_step
        ) from broken
