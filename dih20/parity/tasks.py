"""`inv parity VERB A B`: dump, compare, replay, report and layout."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    help={
        "verb": "dump CHECKPOINT FOLDER | compare A B | replay INPUTS OUTPUTS | report A B | layout STORE LOAD",
        "a": "the first thing of the verb",
        "b": "the second thing of the verb",
        "checkpoint": "compare, replay, report: weights for the reference",
        "mode": "dump, replay: numeric mode exact, trained or sm90",
        "repeat": "compare, report: a second dump of A's run, for the noise floor",
        "out": "compare, report: folder for the findings",
        "prompt": "dump: a text",
        "tokens": "dump: a JSON file of token ids",
        "length": "dump: that many random tokens, if neither text nor file is given",
        "seed": "dump: of the random tokens",
        "decode": "dump: how many of the tokens are decoded one by one",
        "data": "dump: class of the data: synthetic, canary or real",
        "statistics_only": "dump: no tensors, only what estimates their differences",
        "full": "compare: read every tensor that differs",
        "as_values": "compare: allow different dtypes",
        "site": "replay: show this site",
        "bytes_per_token": "layout: size of a record",
        "head_dim": "layout: channels of a record",
    },
)
def parity(
    run: Run,
    verb: str,
    a: str,
    b: str,
    checkpoint: str = "",
    mode: str = "trained",
    repeat: str = "",
    out: str = "",
    prompt: str = "",
    tokens: str = "",
    length: int = 700,
    seed: int = 0,
    decode: int = 4,
    data: str = "",
    statistics_only: bool = False,
    full: bool = False,
    as_values: bool = False,
    site: str = "",
    bytes_per_token: int = 528,
    head_dim: int = 512,
) -> dict[str, Any]:
    """Name the first wrong tensor: dump, compare, replay, report, layout."""
    options = {
        "data_class" if key == "data" else key: value
        for key, value in locals().items()
        if key not in ("run", "verb", "a", "b")
    }
    from dih20.parity.command import Options, run_verb

    return run_verb(run.ui, verb, a, b, Options(**options), only_plan=run.plan)


@task(
    changes=True,
    help={
        "checkpoint": "another checkpoint in place of the canary",
        "seed": "of the layers, phases and magnitudes of the faults",
        "only": "part of a fault's name; all faults without it",
        "keep": "a new folder for the dumps, which are removed otherwise",
        "write": "write docs/evidence/sabotage.json and docs/sabotage.md",
    },
)
def sabotage(
    run: Run,
    checkpoint: str = "",
    seed: int = 1,
    only: str = "",
    keep: str = "",
    write: bool = False,
) -> dict[str, Any]:
    """Inject known faults one by one and see whether `inv parity` names each."""
    from dih20.parity.sabotage.command import plan_sabotage, run_sabotage

    if run.plan:
        return plan_sabotage(run.ui, only=only, keep=keep, write=write)
    return run_sabotage(run.ui, checkpoint=checkpoint, seed=seed, only=only, keep=keep, write=write)
