"""What `inv verify` does: look at the host, compare, print a line for each difference."""

from __future__ import annotations

from typing import Any

from dih20.config import load_host
from dih20.console import Console
from dih20.errors import HostDrifted
from dih20.hosts.ssh import connect
from dih20.lock import Lock
from dih20.verify.drift import Drift, drifts, not_compared
from dih20.verify.expected import Expected, expected_on
from dih20.verify.found import Found, look


def verify(ui: Console, host: str, *, accept_host_key: str = "") -> dict[str, Any]:
    """Compare a host with lock and tree; raise HostDrifted when anything differs."""
    config, lock = load_host(host), Lock.load()
    with ui.step("look at", config.name), connect(config, accept_host_key=accept_host_key) as run:
        found = look(run.docker(), config.container, lock.nccl().version)
    with ui.step("read", "lock and tree here"):
        expected = expected_on(config, lock, found.image_labels if found else {})
    return judged(ui, found, expected)


def judged(ui: Console, found: Found | None, expected: Expected) -> dict[str, Any]:
    """Print the outcome and give it as plain values, or raise for what differs."""
    differences = drifts(found, expected)
    left_out = not_compared(found, expected)
    for drift in differences:
        ui.line(f"  ✗ {drift.line}")
    for line in left_out:
        ui.line(f"  - not compared: {line}")
    name = expected.host.name
    result = {
        "host": name,
        "container": str(found.attrs["Id"]) if found else None,
        "drifts": [vars(drift) for drift in differences],
        "not_compared": left_out,
    }
    if differences:
        raise _drifted(name, differences, result)
    wheels = len(found.wheels) if found else 0
    ui.line(f"{name} runs what lock and tree here say: container, image, {wheels} wheels")
    return result


def _drifted(name: str, differences: list[Drift], result: dict[str, Any]) -> HostDrifted:
    return HostDrifted(
        found=f"{name} differs in {len(differences)}: " + "; ".join(d.line for d in differences),
        expected="what di.lock.yaml, recipes, patches and configs/hosts here say",
        remedy=f"./inv deploy --host {name} --plan shows what would be done; or check out what was deployed",
        details=result,
    )
