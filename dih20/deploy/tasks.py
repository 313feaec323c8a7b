"""`inv deploy`: the image, the wheels and the container on a host."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    help={
        "host": "a file in configs/hosts",
        "image": "tag of the image to deploy; default: the newest of the lock in force",
        "replace": "a container of ours with another configuration may be replaced; it is kept",
        "accept-host-key": "SHA256 fingerprint of a host key that is not in known_hosts yet",
    },
)
def deploy(
    run: Run, host: str, image: str = "", replace: bool = False, accept_host_key: str = ""
) -> dict[str, Any]:
    """Image delta, wheels, container and checks on a host; the old container is kept."""
    from dih20.deploy.start import deploy_to

    return deploy_to(
        run.ui, host, image, only_plan=run.plan, replace=replace, accept_host_key=accept_host_key
    )
