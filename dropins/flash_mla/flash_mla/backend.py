"""Which implementation serves the calls: the SM90 kernels, or the twins when they are asked for.

H20_OPS_BACKEND=twin asks for h20_ops.torch_ref, which is slow and runs on any device. Nothing else
leads there: without it a call that the kernels cannot serve raises.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

VARIABLE = "H20_OPS_BACKEND"


def operator(name: str) -> Callable[..., Any]:
    """Return the function of that name from the backend in force."""
    wanted = os.environ.get(VARIABLE, "kernel")
    if wanted == "twin":
        import h20_ops.torch_ref as source
    elif wanted == "kernel":
        import h20_ops as source  # type: ignore[no-redef]
    else:
        from h20_ops.errors import UnsupportedError

        raise UnsupportedError(
            f"{VARIABLE}={wanted!r}",
            "kernel (the default) or twin (plain torch, slow)",
            f"unset {VARIABLE}, or correct it",
        )
    function: Callable[..., Any] = getattr(source, name)
    return function
