"""From a host's name to a deploy: read configuration and lock, reach the local engine, go."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from dih20.config import load_host
from dih20.console import Console
from dih20.deploy.apply import deploy
from dih20.deploy.gathering import gather_wanted
from dih20.deploy.sketch import show_sketch
from dih20.errors import ToolError
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
    config, lock = load_host(host), Lock.load()
    with ExitStack() as ends:
        try:
            local = connect()
            ends.callback(local.close)
            wanted = gather_wanted(ui, local, config, lock, image)
        except ToolError as missing:
            if only_plan:
                show_sketch(ui, config, missing, accept_host_key=accept_host_key)
            raise
        return deploy(
            ui,
            local,
            wanted,
            only_plan=only_plan,
            replace=replace,
            accept_host_key=accept_host_key,
        )
