"""Serve on this machine: start, wait, show how to ask, and end without leaving anything behind."""

from __future__ import annotations

from typing import Any

from dih20.console import Console
from dih20.errors import LeftBehind
from dih20.operate import launch, local, processes
from dih20.operate.judged import ask
from dih20.operate.local import LocalServer
from dih20.operate.logs import show_lines
from dih20.operate.serving import load_serving
from dih20.operate.watch import Ready, wait_ready
from dih20.plan import Action, Plan

_KILL_WAIT_S = 10.0
_MARGIN_S = 15.0


def serve(ui: Console, *, port: int, detach: bool, only_plan: bool) -> dict[str, Any]:
    """Serve the canary; without detach until Ctrl-C."""
    plan = _plan(port, detach)
    ui.plan(plan)
    if only_plan:
        return plan.as_dict()
    from dih20.groups import ensure

    for group in ("serve", "torch"):
        ensure(ui, group)
    server, result = None, None
    try:
        with ui.step("start", "the server") as step:
            server = launch.launch(port=port, dies_with_us=not detach)
            step.note = f"{server.process.pid}, {server.endpoint.url}"
        result = _result(server, _wait(ui, server))
        _how_to_ask(ui, server)
        if detach:
            return result
        ui.line("Ctrl-C ends it.")
        show_lines(ui, server.lines(follow=True), rank=None)
        ui.warn(f"the server ended by itself, with {server.life().exit_code}")
    except KeyboardInterrupt:
        _end(ui, server)
        if result is None or detach:  # it was not ready yet, or was to go on without us
            raise
        return result
    except BaseException:
        _end(ui, server)
        raise
    stop_server(ui, server)
    return result


def _end(ui: Console, server: LocalServer | None) -> None:
    """End a server that was started; what a launch that failed had started is ended already."""
    if server is not None:
        ui.line()
        stop_server(ui, server)


def _plan(port: int, detach: bool) -> Plan:
    where = f"127.0.0.1:{port}" if port else "a free port of 127.0.0.1"
    return Plan(
        title="serve the canary on this machine",
        actions=(
            Action(verb="install", target="packages of serve.lock and torch.lock", needed=None),
            Action(verb="start", target=f"the server on {where}"),
            Action(verb="wait", target="until it has answered the known questions"),
            Action(
                verb="leave" if detach else "show",
                target="it running" if detach else "its log until Ctrl-C",
            ),
        ),
    )


def _wait(ui: Console, server: LocalServer) -> Ready:
    deadline = load_serving().deadlines.no_progress_timeout_s
    with ui.step("wait", "for the known answers") as step:
        ready = wait_ready(
            ui,
            server,
            server.instance,
            no_progress_timeout_s=deadline,
            answer=lambda: _one_token(server),
        )
        step.note = f"ready after {ready.seconds:.1f} s"
    return ready


def _one_token(server: LocalServer) -> None:
    ask(server.endpoint, server.model, "天空是什么颜色？", max_tokens=1)


def _how_to_ask(ui: Console, server: LocalServer) -> None:
    url = server.endpoint.url
    ui.line(f"{server.model} answers at {url}/v1; its state is at {url}/")
    ui.line(
        f"  curl -s {url}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f'    -d \'{{"model":"{server.model}","messages":[{{"role":"user","content":"中国的首都是哪里？"}}]}}\''
    )


def _result(server: LocalServer, ready: Ready) -> dict[str, Any]:
    return {
        "url": server.endpoint.url,
        "model": server.model,
        "pid": server.process.pid,
        "instance": server.instance,
        "ready_s": round(ready.seconds, 2),
        "gate": ready.gate,
        "log": str(server.log),
    }


def stop(ui: Console, *, only_plan: bool) -> dict[str, Any]:
    """End the server that runs here."""
    server = local.require_recorded()
    plan = Plan(
        title="stop the server on this machine",
        actions=(Action(verb="end", target=str(server.process)),),
    )
    ui.plan(plan)
    return plan.as_dict() if only_plan else stop_server(ui, server)


def stop_server(ui: Console, server: LocalServer) -> dict[str, Any]:
    """TERM, a bounded wait, KILL; then the proof that nothing of it is left."""
    with ui.step("stop", f"the server, pid {server.process.pid}") as step:
        was_enough = processes.end(server.process, wait_s=server.drain_s + _MARGIN_S)
        left = processes.marked(server.instance)
        killed = left if was_enough else [server.process, *left]
        survivors = processes.kill(killed, wait_s=_KILL_WAIT_S)
        if survivors:
            raise LeftBehind(
                found=f"still there after KILL: {', '.join(map(str, survivors))}",
                expected="no process of the server",
                remedy="see with `ps -o stat,wchan -p PID` what holds them; state D waits for the kernel",
            )
        step.note = "by TERM" if was_enough and not left else f"{len(killed)} had to be killed"
        local.forget(server)
    return {"ended_by": "TERM" if was_enough else "KILL", "killed": [p.pid for p in killed]}
