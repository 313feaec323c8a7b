"""The plan of a deploy whose image or wheels are not here yet: every step, each unknown."""

from __future__ import annotations

from dih20.config import HostConfig
from dih20.console import Console
from dih20.errors import ToolError
from dih20.hosts.ssh import connect
from dih20.plan import Action, Plan


def sketch_plan(host: HostConfig) -> Plan:
    """Give the steps of any deploy to a host; without image and wheels none has a known answer."""
    name = host.container
    steps = [
        ("lock", f"{host.work_dir} on {host.name}"),
        ("transfer", "the layers of the di-h20 image that the host lacks"),
        ("load", "the di-h20 image"),
        ("transfer", "the wheels for that image"),
        ("transfer", "the engine tree, unless a deepinfer wheel holds it"),
        ("install", "wheels and engine tree as one layer"),
        ("create", f"container {name}"),
        ("start", f"container {name}"),
        ("read back", "limits, mounts and devices"),
        ("check", "probe, NCCL and imports in the container"),
    ]
    actions = tuple(Action(verb=verb, target=target, needed=None) for verb, target in steps)
    return Plan(title=f"deploy to {host.name} as container {name}", actions=actions)


def show_sketch(
    ui: Console, host: HostConfig, missing: ToolError, *, accept_host_key: str = ""
) -> None:
    """Print the sketch, then raise the host's error if it does not answer, else what is missing here."""
    ui.plan(sketch_plan(host))
    with ui.step("connect to", host.name), connect(host, accept_host_key=accept_host_key):
        pass
    raise missing
