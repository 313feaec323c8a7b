"""The patchset over the locked upstream, and users' own unified diffs.

prepare_tree(ui, lock, source="deepinfer") -> PatchedTree(path, identity, source, patches)
patchset_identity(lock) -> str
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dih20.patches.prepare import PatchedTree, patchset_identity, prepare_tree

__all__ = ["PatchedTree", "patchset_identity", "prepare_tree"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that listing tasks does not load the models."""
    if name in __all__:
        from dih20.patches import prepare

        return getattr(prepare, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
