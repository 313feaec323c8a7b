"""`inv rehearse`: the whole way on this machine, no GPU needed."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    help={
        "vendor": "also build the real deep_gemm, deep_ep and _C wheels (torch with CUDA: GBs)",
        "serve": "also serve the canary on the host: upgrade, failing upgrade, rollback",
    },
)
def rehearse(run: Run, vendor: bool = False, serve: bool = False) -> dict[str, Any]:
    """The whole way on this machine, against throwaway engines and a throwaway sshd."""
    from dih20.rehearse.rehearsal import rehearse as carry_out

    return carry_out(run.ui, vendor=vendor, serve=serve, plan_only=run.plan)
