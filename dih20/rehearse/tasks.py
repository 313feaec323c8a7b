"""`inv rehearse`: the whole way on this machine, no GPU needed."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    help={"vendor": "also build the real deep_gemm, deep_ep and _C wheels (torch with CUDA: GBs)"},
)
def rehearse(run: Run, vendor: bool = False) -> dict[str, Any]:
    """The whole way on this machine, against throwaway engines and a throwaway sshd."""
    from dih20.rehearse.rehearsal import rehearse as carry_out

    return carry_out(run.ui, vendor=vendor, plan_only=run.plan)
