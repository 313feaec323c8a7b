"""`inv gpu-test` and `inv gpu-bench`: the SM90 operators on the GPU at hand."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task

_HELP = {
    "only": "operators, separated by commas",
    "commit": "the tree's commit, where git cannot tell",
}


@task(changes=True, help={**_HELP, "select": "a pytest -k expression; nothing is recorded"})
def gpu_test(run: Run, only: str = "", select: str = "", commit: str = "") -> dict[str, Any]:
    """Operator tests on this machine's GPU; records what passed for which sources."""
    from dih20.gpu.run import run_on_gpu

    return run_on_gpu(
        run.ui, "gpu-test", only=only, select=select, commit=commit, only_plan=run.plan
    )


@task(changes=True, help=_HELP)
def gpu_bench(run: Run, only: str = "", commit: str = "") -> dict[str, Any]:
    """Operator benchmarks on this machine's GPU; results as JSON."""
    from dih20.gpu.run import run_on_gpu

    return run_on_gpu(run.ui, "gpu-bench", only=only, commit=commit, only_plan=run.plan)
