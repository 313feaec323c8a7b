"""`inv verify`: what runs on a host against lock and tree."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    help={
        "host": "a file in configs/hosts",
        "accept-host-key": "SHA256 fingerprint of a host key that is not in known_hosts yet",
    }
)
def verify(run: Run, host: str, accept_host_key: str = "") -> dict[str, Any]:
    """Compare what runs on a host with lock and tree; a line for each difference."""
    from dih20.verify.command import verify as carry_out

    return carry_out(run.ui, host, accept_host_key=accept_host_key)
