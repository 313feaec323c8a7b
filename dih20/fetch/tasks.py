"""`inv fetch`: the only step that downloads."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    help={
        "base": "vllm or stand-in; without it, the base that the image configuration names",
        "only": "groups, separated by commas: base, apt, headers, toolkit, inspector, nccl, build, requirements, "
        "sources; fetched only when named: torch, nccl-for-tests, ci and variants such as serve-cpu",
        "image": "a file in configs/images",
    },
)
def fetch(run: Run, base: str = "", only: str = "", image: str = "di-h20") -> dict[str, Any]:
    """Download each locked input, by sha256, into the cache."""
    from dih20.fetch.fetching import fetch_base

    return fetch_base(run.ui, base=base, only=only, image_name=image, only_plan=run.plan)
