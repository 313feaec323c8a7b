"""`inv canary check | ablate | train | vision-shard`."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    help={
        "verb": "check, ablate, train or vision-shard",
        "mode": "roundings of the reference model: exact, trained or sm90",
        "folder": "another checkpoint in place of the committed one",
        "to": "for train and vision-shard: a new folder to write",
        "seed": "for check and ablate: the facts asked about",
        "threads": "for train: CPU threads; other numbers give other bits",
    },
)
def canary(
    run: Run,
    verb: str,
    mode: str = "trained",
    folder: str = "",
    to: str = "",
    seed: int = 1,
    threads: int = 2,
) -> dict[str, Any]:
    """Ask the canary checkpoint its questions, or make it anew."""
    from dih20.canary import verbs

    if verb == "check":
        return verbs.check(run.ui, mode, folder, seed)
    if verb == "ablate":
        return verbs.ablate(run.ui, mode, folder, seed)
    if verb == "train":
        return verbs.train(run.ui, to, threads, only_plan=run.plan)
    return verbs.vision_shard(run.ui, verb, folder, to, only_plan=run.plan)
