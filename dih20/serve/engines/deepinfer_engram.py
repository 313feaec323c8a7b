"""Where Engram's tables lie: one rule, for the server and for `inv capacity`.

A table is shared by a group of ranks. With several, deep_ep's buffer keeps each one's part in host
memory or on its GPU. A group of one looks its rows up where they lie, and that is on its GPU only
(h20_ops.local_buffers.LocalEngramBuffer refuses host memory).
"""

from __future__ import annotations

from collections.abc import Mapping

ON_GPU = "DEEPINFER_ENGRAM_FORCE_GPU_STORAGE"

#: Ranks that share a table in the server: each GPU has a copy. Only the canary is served by several
#: ranks (Settings.why_not); upstream's own number would be all of them.
SERVED_GROUP = 1


def tables_on_gpu(environment: Mapping[str, str], group: int) -> bool:
    """Say it as the engine reads it; where nothing is set, a group of one needs the GPU."""
    given = environment.get(ON_GPU)
    return group == 1 if given is None else given not in ("0", "", "false", "False")


def why_not(environment: Mapping[str, str], group: int) -> str | None:
    """Give why tables cannot lie where the environment wants them, or None."""
    if group > 1 or tables_on_gpu(environment, group):
        return None
    return (
        f'{ON_GPU} is "{environment[ON_GPU]}", which is host memory, and a GPU that shares '
        "Engram's tables with no other looks its rows up in its own memory"
    )
