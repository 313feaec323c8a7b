"""The commit that a record of times is of."""

from __future__ import annotations

import os

from dih20.engine_check.here import commit
from dih20.errors import UsageError


def commit_of_tree(given: str) -> str:
    """Give the one given, H20_OPS_COMMIT, or what the tree itself says, as engine-check takes it."""
    found = given or os.environ.get("H20_OPS_COMMIT", "") or commit()
    if found == "unknown":
        raise UsageError(
            found="the commit of this tree is unknown: no file COMMIT beside it, and git does not tell",
            expected="a bundle's tree, a git checkout, or the commit by --commit, H20_OPS_COMMIT or DIH20_COMMIT",
            remedy="add --commit $(git rev-parse HEAD), taken where the tree was copied from",
        )
    return found
