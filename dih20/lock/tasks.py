"""`inv lock`: every pin in one file; `--check`: nothing moved."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    help={
        "check": "change nothing; say what is stale or has moved",
        "only": "sections, separated by commas: base, apt, wheels, sources, requirements",
        "base": "vllm or stand-in: of base and apt, only this one's part",
        "image": "a file in configs/images",
        "offline": "with --check: compare with the configuration only, ask no registry or index",
    },
)
def lock(
    run: Run,
    check: bool = False,
    only: str = "",
    base: str = "",
    image: str = "di-h20",
    offline: bool = False,
) -> dict[str, Any]:
    """Resolve every pin into di.lock.yaml; --check: nothing moved."""
    if check:
        from dih20.lock.checking import check_lock

        return check_lock(run.ui, only=only, image_name=image, offline=offline)
    from dih20.lock.writing import write_lock

    return write_lock(run.ui, only=only, base=base, image_name=image, only_plan=run.plan)
