"""`inv build-image`, `inv render-dockerfile` and `inv image-report`."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    help={
        "base": "vllm or stand-in; without it, what configs/images says",
        "image": "a file in configs/images",
        "variant": "with the layer of this variant on top (variants: in configs/images)",
        "host": "build in the engine of this host (a file in configs/hosts)",
        "dockerfile": "build this Dockerfile of yours instead, with the engine's classic builder",
        "tag": "the tag of an image from --dockerfile",
    },
)
def build_image(
    run: Run,
    base: str = "",
    image: str = "di-h20",
    variant: str = "",
    host: str = "",
    dockerfile: str = "",
    tag: str = "di-h20-user:latest",
) -> dict[str, Any]:
    """The di-h20 image, layer by layer, without network: hit or miss, and why."""
    from pathlib import Path

    from dih20.image import command
    from dih20.patches import patchset_identity

    if dockerfile:
        return command.build_from_dockerfile(run.ui, Path(dockerfile), tag=tag, plan_only=run.plan)
    wanted = {"base": base, "image": image, "variant": variant, "host": host}
    return command.build_image(run.ui, patchset=patchset_identity, **wanted, plan_only=run.plan)


@task(
    changes=True,
    help={
        "base": "vllm or stand-in; without it, what configs/images says",
        "image": "a file in configs/images",
        "into": "the folder to write; without it, build/dockerfile-NAME",
    },
)
def render_dockerfile(
    run: Run, base: str = "", image: str = "di-h20", into: str = ""
) -> dict[str, Any]:
    """The same steps as a Dockerfile with its inputs beside it, for BuildKit."""
    from dih20.image import render

    return render.render_dockerfile(run.ui, base=base, image=image, into=into, plan_only=run.plan)


@task(help={"image": "tag or id; without it, the image that was built last"})
def image_report(run: Run, image: str = "") -> dict[str, Any]:
    """What each layer adds, the largest files, times and hits of the last build."""
    from dih20.image import report

    return report.image_report(run.ui, image=image)
