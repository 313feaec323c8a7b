"""`inv lock`: every pin in one file; `--check`: nothing moved; `--upgrade`: what may move."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    optional=("upgrade",),
    help={
        "upgrade": "take newer versions: of all, or of NAME,... ; with --plan, say what would move",
        "check": "change nothing; say what is stale or has moved",
        "only": "sections, separated by commas: base, apt, wheels, sources, requirements, ci",
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
    upgrade: str = "",
) -> dict[str, Any]:
    """Pin what is wanted into di.lock.yaml, keeping pins; --check, --upgrade."""
    if check:
        from dih20.lock.checking import check_lock

        return check_lock(run.ui, only=only, image_name=image, offline=offline)
    from dih20.lock.writing import write_lock

    what = {"only": only, "base": base, "upgrade": upgrade}
    return write_lock(run.ui, image_name=image, only_plan=run.plan, **what)
