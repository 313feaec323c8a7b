"""`inv checkpoint inspect PATH`."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    help={
        "verb": "inspect",
        "path": "a folder with config.json, the index and its shards",
        "tensors": "also list every tensor",
    }
)
def checkpoint(run: Run, verb: str, path: str, tensors: bool = False) -> dict[str, Any]:
    """Check names, shapes and dtypes of a released checkpoint and say what it holds."""
    from dih20.checkpoint.inspecting import inspect

    return inspect(run.ui, verb, path, tensors=tensors)
