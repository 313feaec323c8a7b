"""`inv patch`: the patchset and users' own diffs over the locked upstream."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    help={
        "check": "only say what each patch would do; changes nothing",
        "status": "only list the patches with their reasons",
        "diff": "only print the resulting change as one diff",
        "tree": "with --check or --diff: try this tree in place of the locked upstream",
        "source": "the source in the lock",
    },
)
def patch(
    run: Run,
    check: bool = False,
    status: bool = False,
    diff: bool = False,
    tree: str = "",
    source: str = "deepinfer",
) -> dict[str, Any]:
    """Apply the patchset and your own diffs to the locked upstream."""
    from dih20.patches import report

    report.require_one_mode(plan=run.plan, check=check, status=status, diff=diff, tree=tree)
    if check:
        return report.check(run.ui, source, tree)
    if status:
        return report.status(run.ui, source)
    if diff:
        return report.diff(run.ui, source, tree)
    return report.plan(run.ui, source) if run.plan else report.apply(run.ui, source)
