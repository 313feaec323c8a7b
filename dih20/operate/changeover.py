"""Take one server out of service and put another in: stop, start, gate, and back when that fails.

Two engines do not fit on one host, so the old one ends first. It is stopped and not removed, and
whatever happens to the new one, the old one is started and gated again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from dih20.console import Console
from dih20.deploy.container import SETTINGS
from dih20.errors import FellBack, StartFailed, ToolError
from dih20.hosts.engine_faults import engine_faults
from dih20.operate.evidence import bring_home
from dih20.operate.hosted import HostServer
from dih20.operate.hosted_stop import stop_server
from dih20.operate.judged import ask
from dih20.operate.watch import Ready, wait_ready
from dih20.paths import shown
from dih20.serve.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A container, and the settings that its server gets; the instance in them is set anew each time."""

    server: HostServer
    settings: Mapping[str, Any]


def change_over(ui: Console, new: Choice, old: Choice | None) -> Ready:
    """Give the ready new server; FellBack or StartFailed after a failure, with the evidence at home."""
    try:
        with _engine_faults(new.server):
            if old is not None and old.server.life().is_running:
                stop_server(ui, old.server)
            return bring_up(ui, new)
    except BaseException as fault:
        _go_back(ui, new, old, fault)
        raise


def bring_up(ui: Console, choice: Choice) -> Ready:
    """Start a server in its container, and wait until it has answered the known questions."""
    server, instance = choice.server, secrets.token_hex(8)
    values = {**choice.settings, "instance": instance}
    settings = Settings.model_validate(values)
    with ui.step("start", f"the server in {server.name}") as step:
        if server.is_serving():
            stop_server(ui, server)
        server.wake()
        server.write(SETTINGS, json.dumps(values, indent=1).encode())
        server.permit(instance)
        step.note = f"instance {instance}"
    with ui.step("wait", "for the known answers") as step:
        ready = wait_ready(
            ui,
            server,
            instance,
            no_progress_timeout_s=settings.deadlines.no_progress_timeout_s,
            answer=lambda: _one_token(server, settings.served_name),
        )
        step.note = f"ready after {ready.seconds:.1f} s"
    return ready


def _engine_faults(server: HostServer) -> AbstractContextManager[None]:
    """Turn what the engine says against us into an error of ours, so that every way to fail goes back."""
    return engine_faults(server.session.runner)


def _one_token(server: HostServer, model: str) -> None:
    ask(server.endpoint, model, "天空是什么颜色？", max_tokens=1)


def _go_back(ui: Console, new: Choice, old: Choice | None, fault: BaseException) -> None:
    """Bring evidence home, end the new server, and start the old one; raise what that came to."""
    why = fault.found if isinstance(fault, ToolError) else f"interrupted ({type(fault).__name__})"
    ui.warn(f"{new.server.name} did not become ready: {why.splitlines()[0]}")
    folder = _evidence(ui, new.server, why)
    _end(ui, new.server, fault)
    if old is None:
        if isinstance(fault, ToolError):
            raise StartFailed(
                found=why,
                expected="a server that becomes ready; none was there before, so none serves now",
                remedy=f"{fault.remedy}; evidence: {folder}",
                details={"evidence": folder},
            ) from fault
        return
    try:
        with _engine_faults(old.server):
            ready = bring_up(ui, old)
    except ToolError as again:
        second = _evidence(ui, old.server, again.found)
        raise StartFailed(
            found=f"the new server failed ({why}), and the one before it did not come back: {again.found}",
            expected="one of the two to serve; none does now",
            remedy=f"{again.remedy}; evidence: {folder} and {second}",
            details={"evidence": folder, "evidence_of_the_old": second},
        ) from fault
    ui.line(f"  {old.server.name} serves again, and answered the known questions", style="bold")
    if isinstance(fault, ToolError):
        raise FellBack(
            found=f"the new server did not become ready: {why}",
            expected="an answer to the known questions; the server before it serves again, gated in "
            f"{ready.seconds:.1f} s",
            remedy=f"{fault.remedy}; evidence: {folder}",
            details={"evidence": folder},
        ) from fault


def _evidence(ui: Console, server: HostServer, why: str) -> str:
    """Give the folder with what was brought home; a host that is gone must not hide the first fault."""
    try:
        with _engine_faults(server):
            folder = shown(bring_home(server, why))
    except (ToolError, OSError) as lost:
        folder = f"none: {getattr(lost, 'found', lost)}"
    ui.line(f"  evidence: {folder}")
    return folder


def _end(ui: Console, server: HostServer, fault: BaseException) -> None:
    """End the new server; while anything of it is left, the old one cannot be started beside it."""
    try:
        with _engine_faults(server):
            stop_server(ui, server)
    except ToolError as stuck:
        raise StartFailed(
            found=f"the new server failed ({getattr(fault, 'found', fault)}) and could not be ended: {stuck.found}",
            expected="its end, and the server before it in service again",
            remedy=f"{stuck.remedy}; then `./inv serve --host {server.where}` starts one of the two",
        ) from fault
