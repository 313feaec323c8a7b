"""`inv explain`: where a wheel, an image or a container came from."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    help={
        "name": "a wheel's path, or the name or id of a container or an image",
        "host": "ask the engine of this host (a file in configs/hosts) instead of the one here",
        "sbom": "give the CycloneDX bill of materials too; it is in the --json object",
        "accept-host-key": "SHA256 fingerprint of a host key that is not in known_hosts yet",
    }
)
def explain(
    run: Run, name: str, host: str = "", sbom: bool = False, accept_host_key: str = ""
) -> dict[str, Any]:
    """Where a wheel, image or container came from, and what keeps it from being a hit."""
    from dih20.explain.command import explain as carry_out

    return carry_out(run.ui, name, host=host, sbom=sbom, accept_host_key=accept_host_key)
