"""`inv bundle`: the engine for a host without network and Docker."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    help={
        "part-size": "largest part: bytes, or with K, M or G (of 1024)",
        "out": "folder for parts, manifest and run.sh; build/bundle without it",
        "without": "packages and groups that the host brings itself, such as numpy,nccl",
        "wheels": "folder with vendor wheels built elsewhere; the wheel store's are taken anyway",
        "wheels-torch": "the torch that those were built with; not needed beside a wheels.json",
        "thin-nccl": "keep NCCL's device code of this architecture alone, such as sm_90",
        "thin-site": "packages without static libraries, C++ sources and debug symbols",
        "level": "compression, 0 to 9",
    },
)
def bundle(
    run: Run,
    part_size: str = "40M",
    out: str = "",
    without: str = "",
    wheels: str = "",
    wheels_torch: str = "",
    thin_nccl: str = "",
    thin_site: bool = False,
    level: int = 3,
) -> dict[str, Any]:
    """The engine for a bare GPU host: parts, manifest and run.sh."""
    from dih20.bundle.making import make
    from dih20.bundle.request import Request

    thin: dict[str, Any] = {"thin_nccl": thin_nccl, "thin_site": thin_site}
    wanted = Request.of(part_size, out, without, wheels, wheels_torch, level=level, **thin)
    return make(run.ui, wanted, only_plan=run.plan)
