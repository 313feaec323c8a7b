"""Write the changes laid over a tree as one diff that git and `inv patch` both apply."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from dih20.patches.applying import split_lines
from dih20.patches.diff_paths import quoted
from dih20.patches.tree import FILE, Entry, Tree, blob_id

_NO_BLOB = "0" * 40


def resulting_diff(tree: Tree) -> bytes:
    """Give the diff from the files on disk to the tree with its changes, sorted by path."""
    before = Tree(tree.root)
    parts = [
        line
        for path in sorted(tree.changes)
        for line in _file_diff(path, before.read(path), tree.changes[path])
    ]
    return b"".join(parts)


def _file_diff(path: str, old: Entry | None, new: Entry | None) -> Iterator[bytes]:
    if old == new:
        return
    a, b = quoted(f"a/{path}"), quoted(f"b/{path}")
    yield b"diff --git %s %s\n" % (a, b)
    if old is None or new is None:
        yield b"%s file mode %o\n" % (
            b"new" if new else b"deleted",
            (new or old or Entry(mode=FILE, content=b"")).mode,
        )
    elif old.mode != new.mode:
        yield b"old mode %o\nnew mode %o\n" % (old.mode, new.mode)
    before, after = (old.content if old else b""), (new.content if new else b"")
    blobs = [blob_id(entry.content) if entry else _NO_BLOB for entry in (old, new)]
    if before == after and old and new:
        return
    mode = b" %o" % old.mode if old and new and old.mode == new.mode else b""
    yield b"index %s..%s%s\n" % (blobs[0].encode(), blobs[1].encode(), mode)
    if before == after:
        return
    tab = b"\t" if b" " in a else b""
    lines = difflib.diff_bytes(
        difflib.unified_diff,
        split_lines(before),
        split_lines(after),
        a if old else b"/dev/null",
        b if new else b"/dev/null",
    )
    for number, line in enumerate(lines):
        if number < 2:
            yield line.rstrip(b"\n") + (tab if b"/dev/null" not in line else b"") + b"\n"
        else:
            yield line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
