"""`inv doctor`: what is missing here, or on a host, and what to run."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    help={
        "host": "a file in configs/hosts; without it, this machine is looked at",
        "accept-host-key": "SHA256 fingerprint of a host key that is not in known_hosts yet",
    }
)
def doctor(run: Run, host: str = "", accept_host_key: str = "") -> dict[str, Any]:
    """What is missing here, or on a host, and what to run."""
    from dih20.doctor.report import examine, show

    return show(run.ui, examine(host, accept_host_key))
