"""What became of an edit by symbol, in the words that diffs use too."""

from __future__ import annotations

from dih20.errors import PatchError, PatchMalformed
from dih20.patches.applying import Outcome, State
from dih20.patches.edits.applying import lay_edit
from dih20.patches.edits.evaluate import Part
from dih20.patches.edits.model import read_edit
from dih20.patches.series import Patch
from dih20.patches.tree import Tree

_WORST: tuple[State, ...] = ("missing", "ambiguous", "body changed", "moved")


def edit_outcome(tree: Tree, patch: Patch) -> Outcome:
    """Lay one edit by symbol over the tree, whole or not at all."""
    assert patch.folder is not None
    try:
        edit = read_edit(patch.folder)
        parts = tuple(lay_edit(tree, edit, patch.folder))
    except PatchMalformed as error:
        return Outcome(patch=patch, state="malformed", note=error.found, error=error)
    except PatchError as error:
        return Outcome(patch=patch, state="does not apply", note=error.found, error=error)
    files = tuple(dict.fromkeys(change.file for change in edit.changes))
    if any(not part.ok for part in parts):
        return _refused_edit(patch, parts, files)
    states = {part.state for part in parts}
    if states <= {"already upstream"}:
        note = "upstream has it: take it out of the series"
        return Outcome(patch=patch, state="already upstream", note=note, files=files, parts=parts)
    if "applied" not in states:
        note = "nothing left to change"
        return Outcome(patch=patch, state="already", note=note, files=files, parts=parts)
    note = "; ".join(f"{part.place}: {part.state}" for part in parts if part.state != "applied")
    return Outcome(patch=patch, state="applied", note=note, files=files, parts=parts)


def _refused_edit(patch: Patch, parts: tuple[Part, ...], files: tuple[str, ...]) -> Outcome:
    """Name every place that does not fit; the outcome's state is the worst of theirs."""
    refused = [part for part in parts if not part.ok]
    error = PatchError(
        found="; ".join(f"{patch.name}: {part.place}: {part.state}" for part in refused),
        expected=f"the symbols of the release that {patch.name}/edit.yaml was made for",
        remedy=refused[0].note,
    )
    return Outcome(
        patch=patch,
        state=next(each for each in _WORST if any(part.state == each for part in refused)),
        note=f"{len(refused)} of {len(parts)} places do not fit",
        files=files,
        error=error,
        parts=parts,
    )
