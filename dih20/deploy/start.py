"""From a host's name to a deploy: read configuration and lock, reach the local engine, go."""

from __future__ import annotations

from typing import Any

from dih20.config import load_host
from dih20.console import Console
from dih20.deploy.apply import deploy
from dih20.deploy.gathering import gather_wanted
from dih20.image.engine import connect
from dih20.lock import Lock


def deploy_to(
    ui: Console,
    host: str,
    image: str = "",
    *,
    only_plan: bool = False,
    replace: bool = False,
    accept_host_key: str = "",
) -> dict[str, Any]:
    """Deploy to a host by the name of its file in configs/hosts, or by a path."""
    config, lock, local = load_host(host), Lock.load(), connect()
    try:
        wanted = gather_wanted(ui, local, config, lock, image)
        return deploy(
            ui,
            local,
            wanted,
            only_plan=only_plan,
            replace=replace,
            accept_host_key=accept_host_key,
        )
    finally:
        local.close()
