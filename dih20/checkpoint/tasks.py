"""`inv checkpoint inspect PATH` and `inv checkpoint requant PATH`."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    help={
        "verb": "inspect: names, shapes, sizes; requant: what SM90's number formats lose",
        "path": "a folder with config.json, the index and its shards",
        "tensors": "also list every tensor",
        "device": "where requant converts: cpu, or cuda on an SM90 GPU",
    }
)
def checkpoint(
    run: Run, verb: str, path: str, tensors: bool = False, device: str = "cpu"
) -> dict[str, Any]:
    """Say what a released checkpoint holds, or what it loses on SM90."""
    from dih20.checkpoint.verbs import run_verb

    return run_verb(run.ui, verb, path, tensors=tensors, device=device)
