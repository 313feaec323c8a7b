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
        "diagnose": "look for the known faults of SM90 ports in --tree; changes nothing",
        "in-place": "lay the project's edits into --tree",
        "undo": "take the project's edits out of --tree again",
        "tree": "a tree of yours in place of the locked upstream",
        "test-only": "with the edits that are for tests alone; never built into wheels",
        "source": "the source in the lock",
    },
)
def patch(
    run: Run,
    check: bool = False,
    status: bool = False,
    diff: bool = False,
    diagnose: bool = False,
    in_place: bool = False,
    undo: bool = False,
    tree: str = "",
    test_only: bool = False,
    source: str = "deepinfer",
) -> dict[str, Any]:
    """Apply the patchset and your own diffs to the locked upstream."""
    from dih20.patches.modes import Modes, answer

    modes = Modes(check=check, status=status, diff=diff)
    modes = modes.also(diagnose=diagnose, in_place=in_place, undo=undo)
    return answer(run, modes, tree=tree, test_only=test_only, source=source)
