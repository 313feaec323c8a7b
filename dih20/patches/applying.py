"""Apply patches to a tree in memory: each one whole, or not at all with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dih20.errors import PatchError, PatchMalformed
from dih20.patches.diff_file import FileChange, read_diff
from dih20.patches.placing import Refusal, place
from dih20.patches.series import Patch
from dih20.patches.tree import FILE, Entry, Tree, blob_id

if TYPE_CHECKING:
    from dih20.patches.edits.evaluate import Part

State = Literal[
    "applied",
    "already",
    "already upstream",
    "moved",
    "body changed",
    "ambiguous",
    "missing",
    "does not apply",
    "malformed",
]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one patch: files it changed, lines it moved by, or why it was refused.

    parts: for an edit by symbol, what became of each of its changes.
    """

    patch: Patch
    state: State
    note: str = ""
    files: tuple[str, ...] = ()
    error: PatchError | None = None
    parts: tuple[Part, ...] = ()

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(frozen=True, kw_only=True)
class _Done:
    """What became of one file."""

    path: str
    already: bool = False
    moved: str = ""


def apply_all(tree: Tree, patches: Sequence[Patch]) -> list[Outcome]:
    """Try every patch in order; a refused one leaves no trace, and those after it are tried still."""
    return [_edited(tree, patch) if patch.folder else _apply(tree, patch) for patch in patches]


def _edited(tree: Tree, patch: Patch) -> Outcome:
    from dih20.patches.edits.outcome import edit_outcome  # LibCST only when there is an edit

    return edit_outcome(tree, patch)


def _apply(tree: Tree, patch: Patch) -> Outcome:
    attempt = tree.branch()
    try:
        changes = read_diff(patch.name, patch.text)
        done = [_change(tree, attempt, patch.name, change) for change in changes]
        already = [d.path for d in done if d.already]
        if already and len(already) < len(done):
            fresh = next(d.path for d in done if not d.already)
            raise _refused(
                patch.name, f"it is there in part: {already[0]} has it already, {fresh} does not"
            )
    except PatchMalformed as error:
        return Outcome(patch=patch, state="malformed", note=error.found, error=error)
    except PatchError as error:
        return Outcome(patch=patch, state="does not apply", note=error.found, error=error)
    files = tuple(dict.fromkeys(d.path for d in done))
    if already:
        return Outcome(patch=patch, state="already", note="nothing left to change", files=files)
    tree.changes = attempt.changes
    moved = "; ".join(d.moved for d in done if d.moved)
    return Outcome(patch=patch, state="moved" if moved else "applied", note=moved, files=files)


def _change(start: Tree, tree: Tree, name: str, change: FileChange) -> _Done:
    """Apply one change to `tree`; renames and copies read from `start`, as git does in one diff."""
    moves = change.kind in ("rename", "copy")
    before = (start if moves else tree).read(change.old_path)
    if change.kind == "add":
        return _add(tree, name, change, before)
    if change.kind == "delete" and before is None:
        return _Done(path=change.path, already=True)
    if moves:
        after = tree.read(change.new_path)
        if after is not None:
            if (before is None) == (change.kind == "rename") and _is_result(after, change):
                return _Done(path=change.path, already=True)
            raise _refused(name, f"{change.new_path} exists, where {change.old_path} should go")
    if before is None:
        raise _refused(name, f"there is no file {change.old_path}")
    if change.kind == "modify" and _is_result(before, change):
        return _Done(path=change.path, already=True)
    content, moved = _patched(name, change, before)
    if change.kind == "delete":
        if content:
            raise _refused(name, f"{change.old_path} has lines that the patch does not delete")
        tree.remove(change.old_path)
        return _Done(path=change.path, moved=moved)
    if change.kind == "rename":
        tree.remove(change.old_path)
    tree.put(change.new_path, Entry(mode=change.new_mode or before.mode, content=content))
    return _Done(path=change.path, moved=moved)


def _add(tree: Tree, name: str, change: FileChange, before: Entry | None) -> _Done:
    content = b"".join(line for hunk in change.hunks for line in hunk.new)
    entry = Entry(mode=change.new_mode or FILE, content=content)
    if before is not None:
        if before.content == content and change.new_mode in (None, before.mode):
            return _Done(path=change.path, already=True)
        raise _refused(name, f"{change.new_path} exists already, with other content or mode")
    _check_blob(name, change, content)
    tree.put(change.new_path, entry)
    return _Done(path=change.path)


def _patched(name: str, change: FileChange, before: Entry) -> tuple[bytes, str]:
    """Give the new content, and a note when hunks had moved."""
    if change.old_mode and change.new_mode != change.old_mode and before.mode != change.old_mode:
        raise _refused(
            name, f"{change.old_path} has mode {before.mode:o}, wanted {change.old_mode:o}"
        )
    proven = _matches(change.old_blob, before.content)
    if not change.hunks:
        if change.old_blob and not proven:
            raise _refused(name, f"{change.old_path} is not the file the patch was made from")
        return before.content, ""
    result = place(split_lines(before.content), change.hunks, proven=proven)
    if isinstance(result, Refusal):
        raise _refused(
            name, f"{change.old_path}: hunk {result.hunk} of {len(change.hunks)}: {result.why}"
        )
    content = b"".join(result.lines)
    if proven:
        _check_blob(name, change, content)
    moves = [f"hunk {n} by {by:+d} lines" for n, by in enumerate(result.offsets, 1) if by]
    return content, f"{change.old_path}: {', '.join(moves)}" if moves else ""


def _check_blob(name: str, change: FileChange, content: bytes) -> None:
    """The index line promises the result; other bytes mean that the diff was edited by hand."""
    if change.kind != "delete" and change.new_blob and not _matches(change.new_blob, content):
        raise _refused(
            name,
            f"{change.new_path} comes out as blob {blob_id(content)[: len(change.new_blob)]}, and the patch's "
            f"index line promises {change.new_blob}: its lines were edited after the diff was made",
        )


def _is_result(entry: Entry, change: FileChange) -> bool:
    """Say whether a file is already what the change makes of it."""
    if (
        change.new_mode is not None
        and change.new_mode != change.old_mode
        and entry.mode != change.new_mode
    ):
        return False
    if change.new_blob and _matches(change.new_blob, entry.content):
        return True
    if not change.hunks:
        return change.old_mode != change.new_mode or change.kind in ("rename", "copy")
    if _matches(change.old_blob, entry.content):
        return False
    lines = split_lines(entry.content)
    if any(hunk.is_bare and len(hunk.new) != len(lines) for hunk in change.hunks):
        return False  # a line that stands somewhere is no sign that this patch put it there
    if not isinstance(place(lines, change.hunks, proven=False), Refusal):
        return False
    back = [hunk.reversed() for hunk in change.hunks]
    return not isinstance(place(lines, back, proven=False), Refusal)


def _matches(blob: str | None, content: bytes) -> bool:
    return blob is not None and len(blob) >= 7 and blob_id(content).startswith(blob)


def split_lines(content: bytes) -> list[bytes]:
    """Split at newlines only: a carriage return is part of its line."""
    lines = [line + b"\n" for line in content.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _refused(name: str, why: str) -> PatchError:
    return PatchError(
        found=f"{name} does not apply: {why}",
        expected="every line of every hunk in the tree as the patch has it, without fuzz",
        remedy="make the patch again on the locked upstream (`./inv patch --check` shows every patch), or take it out",
    )
