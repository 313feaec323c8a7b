"""Look at a server and ask it: the same for this machine and for a host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dih20.console import Console
from dih20.errors import NotServing
from dih20.operate import local
from dih20.operate.judged import ask as ask_one
from dih20.operate.judged import require_healthy
from dih20.operate.logs import show_lines
from dih20.operate.placed import Placed
from dih20.operate.watch import shown

_ASK_MODEL = "/v1/models"


@contextmanager
def reached(ui: Console, host: str) -> Iterator[Placed]:
    """Give the server of this machine or of a host, which may be anything but ready."""
    if not host:
        yield local.require_recorded()
        return
    from dih20.operate.hosted import on_host

    with on_host(ui, host) as session:
        yield session.require_server()


def status(ui: Console, host: str) -> dict[str, Any]:
    """Print and give what a server does; one that cannot be asked is described from outside."""
    with reached(ui, host) as server:
        life = server.life()
        start = server.endpoint.get("/startupz") if life.is_running else None
        about = server.endpoint.get("/status.json") if start else None
        version = server.endpoint.get("/version") if start else None
        values = start.values if start else {}
        found = {
            "where": server.where,
            "name": server.name,
            "running": life.is_running,
            "exit_code": life.exit_code,
            "url": server.endpoint.url,
            "others": server.others(),
            "start": values,
            "status": about.values if about else {},
            "version": version.values if version else {},
        }
        _show(ui, server, found)
        return found


def _show(ui: Console, server: Placed, found: dict[str, Any]) -> None:
    start, about, version = found["start"], found["status"], found["version"]
    rows = [["where", f"{server.where}, {server.name}"]]
    if not found["running"]:
        rows.append(["state", f"not running; exit code {found['exit_code']}"])
    elif not start:
        rows.append(["state", server.silence])
    else:
        rows.append(["state", shown(start)])
        rows += [["reason", str(start["reason"])]] if start.get("reason") else []
        rows.append(["serves", f"{version.get('model', '?')} at {found['url']}/v1"])
        rows.append(["requests", _requests(about)])
        identities = version.get("identities") or {}
        rows.append(
            ["identity", ", ".join(f"{k} {v[:12]}" for k, v in identities.items() if v) or "none"]
        )
        if about.get("last_error"):
            rows.append(["last error", str(about["last_error"])])
    rows += [["beside", text] for text in found["others"]]
    ui.table(["", ""], rows, title="server")


def _requests(about: dict[str, Any]) -> str:
    if not about:
        return "unknown"
    rate = float(about.get("tokens_per_s") or 0.0)
    return (
        f"{about.get('running', 0)} running, {about.get('waiting', 0)} of {about.get('queue_limit', '?')} places "
        f"waiting, {about.get('finished', 0)} finished; {rate:.1f} tokens/s"
    )


def logs(ui: Console, host: str, *, follow: bool, rank: int | None, tail: int) -> dict[str, object]:
    """Print a server's log; with follow until it ends, or until Ctrl-C."""
    with reached(ui, host) as server:
        if not follow:
            return show_lines(
                ui, server.tail(tail) if tail else server.lines(follow=False), rank=rank
            )
        try:
            return show_lines(ui, server.lines(follow=True), rank=rank)
        except KeyboardInterrupt:
            return {"lines": "until interrupted"}


def ask(ui: Console, host: str, question: str, *, max_tokens: int) -> dict[str, Any]:
    """Print the answer with its log-probs and the verdict; a degenerate one is an error."""
    with reached(ui, host) as server:
        model = _model(server)
        answer = ask_one(server.endpoint, model, question, max_tokens=max_tokens)
    ui.line(answer.text)
    pairs = zip(answer.tokens, answer.log_probs, strict=True)
    ui.line("  " + "  ".join(f"{token!r} {value:.3f}" for token, value in pairs), style="dim")
    require_healthy(answer)
    ui.line(
        f"  log-probs as a healthy model gives them; ended by {answer.finish_reason}", style="dim"
    )
    return {"model": model, **answer.as_dict()}


def _model(server: Placed) -> str:
    reply = server.endpoint.get(_ASK_MODEL)
    if reply is None or reply.status != 200 or not reply.values.get("data"):
        start = server.endpoint.get("/startupz")
        raise NotServing(
            found=f"{server.endpoint.url} on {server.where} "
            + (f"is not ready: {shown(start.values)}" if start else "does not answer"),
            expected="a server that is ready",
            remedy="run `./inv status` to see what it does, and `./inv logs` to see why",
        )
    return str(reply.values["data"][0]["id"])
