"""What `inv sabotage` does: run the suite on a checkpoint, print it, write the evidence."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20 import groups
from dih20.console import Console
from dih20.errors import TestsFailed, UsageError
from dih20.paths import REPOSITORY, shown
from dih20.plan import Action, Plan

if TYPE_CHECKING:
    from dih20.parity.sabotage.base import Base

EVIDENCE = REPOSITORY / "docs" / "evidence" / "sabotage.json"
PAGE = REPOSITORY / "docs" / "sabotage.md"


def plan_sabotage(ui: Console, *, only: str, keep: str, write: bool) -> dict[str, Any]:
    """Print which faults would be injected and what would be written; change nothing."""
    groups.ensure(ui, "torch")
    from dih20.parity.sabotage.catalogue import FAULTS

    actions = [Action(verb="inject", target=name) for name in FAULTS if only in name]
    if keep:
        actions.append(Action(verb="keep", target=f"the dumps in {keep}"))
    if write:
        actions += [Action(verb="write", target=shown(path)) for path in (EVIDENCE, PAGE)]
    plan = Plan(title="break the reference in known ways", actions=tuple(actions))
    ui.plan(plan)
    return plan.as_dict()


def run_sabotage(
    ui: Console, *, checkpoint: str, seed: int, only: str, keep: str, write: bool
) -> dict[str, Any]:
    """Inject the faults one by one and compare what the tool says with what was injected.

    only: a part of the faults' names. keep: a new folder for the dumps, else they are removed.
    write: update docs/; only for the whole suite.
    """
    groups.ensure(ui, "torch")
    import torch

    torch.set_num_threads(1)  # many small tensors: threads cost more than they bring
    from dih20.parity.sabotage.canary import canary_base
    from dih20.parity.sabotage.catalogue import FAULTS
    from dih20.parity.sabotage.suite import Outcome, Suite
    from dih20.parity.sabotage.table import as_evidence, summary, write_evidence

    names = [name for name in FAULTS if only in name]
    if not names or (write and only):
        raise UsageError(
            found=f"--only {only!r}" + (" with --write" if names else ""),
            expected=f"part of a fault's name, as {', '.join(list(FAULTS)[:3])}, ...; "
            "the evidence is written of all of them",
            remedy="run `./inv sabotage` without --only to see all names",
        )
    with ui.step("read", checkpoint or "the canary"):
        base = canary_base(checkpoint)
    with _folder(keep) as folder:
        with ui.step("dump", "the healthy run, twice"):
            suite = Suite(base, Path(folder), keep=bool(keep))
        rows = []
        for name in names:
            with ui.step("inject", name) as step:
                (row,) = suite.rows(seed, [name])
                step.note = f"{row.site_named} {row.phase_named}: {row.cause_named}"
            rows.append(row)
        with ui.step("run", "without a fault"):
            accused = suite.accused_without_faults()
    outcome = Outcome(rows=tuple(rows), accused_without_fault=accused)
    evidence = as_evidence(outcome, base, seed=seed)
    ui.line(summary(evidence))
    if failures := outcome.failures(whole=not only):
        raise TestsFailed(
            found="; ".join(failures),
            expected="every fault's site and phase named first, no cause for unknown ones, "
            "nothing accused without a fault",
            remedy="run `./inv sabotage --only NAME --keep FOLDER`, then `./inv parity compare "
            "FOLDER/healthy FOLDER/NAME`",
        )
    if write:
        _check_unchanged(base)
        write_evidence(evidence, EVIDENCE, PAGE)
    return evidence


def _check_unchanged(base: Base) -> None:
    from dih20.parity.checkpoints import weights_hash

    now = weights_hash(base.checkpoint)
    if now != base.oracle.weights_hash:
        raise TestsFailed(
            found=f"the checkpoint changed while the suite ran: {now[:12]}",
            expected=f"{base.oracle.weights_hash[:12]}, which the first dump was made of",
            remedy="leave the checkpoint alone and run `./inv sabotage --write` again",
        )


def _folder(keep: str) -> AbstractContextManager[str]:
    return nullcontext(keep) if keep else tempfile.TemporaryDirectory(prefix="sabotage-")
