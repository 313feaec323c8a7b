"""Pull a registry base into the engine by its digest; the tag is never asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dih20.console import Console
from dih20.errors import FetchError
from dih20.lock.engine import NotReachable, client_faults, engine_client
from dih20.lock.files import Base


def fetch_base_image(ui: Console, base: Base) -> None:
    """Have the engine hold the base; what it holds already is not pulled again."""
    from docker.errors import ImageNotFound

    reference = base.reference
    with ui.step("fetch", f"base image {reference}") as step:
        try:
            client = engine_client(timeout_s=600)
            try:
                client.images.get(reference)
                step.status, step.note = "hit", "the engine holds it"
                return
            except ImageNotFound:
                step.status = "miss"
            with ui.progress("base image") as advance:
                _pull(client, reference, advance)
            client.images.get(reference)
        except NotReachable as fault:
            raise _failed(reference, str(fault)) from fault
        except client_faults() as fault:
            raise _failed(reference, str(fault)) from fault


def _pull(client: Any, reference: str, advance: Callable[[float], None]) -> None:
    seen: dict[str, float] = {}
    for event in client.api.pull(reference, stream=True, decode=True):
        if "error" in event:
            raise _failed(reference, event["error"])
        if event.get("status") == "Downloading":
            now = float(event.get("progressDetail", {}).get("current", 0))
            advance(now - seen.get(event["id"], 0.0))
            seen[event["id"]] = now


def _failed(reference: str, why: str) -> FetchError:
    return FetchError(
        found=f"{reference} could not be pulled: {why}",
        expected="the base image by the digest in the lock; the tag is never taken in its place",
        remedy="check that the engine reaches its registry (its own mirrors and proxy), or `docker load` the image there",
    )
