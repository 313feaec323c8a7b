"""Wait until a server is ready: as long as it lives and makes progress, and not one look longer.

A port that answers proves nothing: an old server answers 200 as well. So the instance that this
start gave is looked for in every answer, and readiness ends with a request for one token.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dih20.console import Console
from dih20.errors import EngineStartFailed, GateFailed, NotServing, ServeError, ToolError
from dih20.operate.fatal_lines import explained
from dih20.operate.placed import Placed

TAIL = 40
_LOOK_EVERY_S = 0.3
_SHOW_EVERY_S = 5.0
_MARGIN_S = 30.0  # the server judges its own silence; it is judged from here when it does not
_GATE_FAILED = GateFailed.exit_code


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A server that answered: seconds since the start, and what its gate found."""

    seconds: float
    gate: dict[str, Any]
    version: dict[str, Any]


def wait_ready(
    ui: Console,
    server: Placed,
    instance: str,
    *,
    no_progress_timeout_s: float,
    answer: Callable[[], None],
    pause: Callable[[float], None] = time.sleep,
) -> Ready:
    """Give the ready server; every way to fail ends with the log's last lines.

    Args:
        instance: what this start named the server.
        no_progress_timeout_s: the server's own deadline; it is waited for a little longer.
        answer: asks for one token, and raises when none comes.
    """
    started = time.monotonic()
    progress = _Progress(ui, no_progress_timeout_s + _MARGIN_S)
    while True:
        reply = server.endpoint.get("/startupz")
        values = reply.values if reply else {}
        if reply is not None and values.get("instance") != instance:
            raise _not_ours(server, reply.status, values)
        phase = str(values.get("phase", ""))
        if phase == "ready":
            ready = server.endpoint.get("/readyz")
            if ready is not None and ready.status == 200:
                answer()
                version = server.endpoint.get("/version")
                return Ready(
                    seconds=time.monotonic() - started,
                    gate=dict(ready.values.get("gate") or {}),
                    version=version.values if version else {},
                )
        life = server.life()
        if phase in ("failed", "stopped") or not life.is_running:
            raise _ended(server, str(values.get("reason") or ""), life.exit_code)
        progress.look(server, values)
        pause(_LOOK_EVERY_S)


class _Progress:
    """The last sign of life, and what was shown of it."""

    def __init__(self, ui: Console, patience_s: float) -> None:
        self._ui, self._patience_s = ui, patience_s
        self._seen: tuple[Any, ...] = ()
        self._since = self._shown_at = time.monotonic()
        self._phase = ""

    def look(self, server: Placed, values: dict[str, Any]) -> None:
        now = time.monotonic()
        line = str(values.get("progress_line") or "")
        seen = (values.get("phase"), values.get("fraction"), line)
        if seen != self._seen:
            self._seen, self._since = seen, now
            if values.get("phase") != self._phase or now - self._shown_at > _SHOW_EVERY_S:
                self._phase, self._shown_at = str(values.get("phase")), now
                self._ui.line(f"    {shown(values)}", style="dim")
        if now - self._since > self._patience_s:
            raise EngineStartFailed(
                found=f"{server.name} lives and has shown no progress for {now - self._since:.0f} s; its last sign: "
                f"{shown(values) if values else 'none: nothing answers'}{_last(server)}",
                expected="a phase or a line within deadlines: no_progress_timeout_s of configs/serve.yaml "
                f"({self._patience_s - _MARGIN_S:g} s)",
                remedy="read the log; if it was at work all the time, raise no_progress_timeout_s",
            )


def shown(values: dict[str, Any]) -> str:
    """Give one line on where a start is: phase, share, seconds, estimate, last line."""
    parts = [str(values.get("phase") or "not answering yet")]
    if (fraction := values.get("fraction")) is not None:
        parts.append(f"{float(fraction):.0%}")
    if (elapsed := values.get("elapsed_s")) is not None:
        parts.append(f"after {float(elapsed):.0f} s")
    if (eta := values.get("eta_s")) is not None:
        parts.append(f"about {float(eta):.0f} s to go, as the last start went")
    line = str(values.get("progress_line") or "")
    return ", ".join(parts) + (f": {line}" if line else "")


def _not_ours(server: Placed, status: int, values: dict[str, Any]) -> ToolError:
    whose = values.get("instance")
    return NotServing(
        found=f"{server.endpoint.url} on {server.where} answers {status}, and it is not the server that was started: "
        + (f"it calls itself {whose}" if whose else "it names no instance"),
        expected="the instance that this start gave the server",
        remedy=f"see who listens there with `ss -ltnp 'sport = :{server.endpoint.port}'` on {server.where}; stop it, "
        "or choose another port",
    )


def _ended(server: Placed, reason: str, code: int | None) -> ServeError:
    kind = GateFailed if code == _GATE_FAILED or "answer is wrong" in reason else EngineStartFailed
    how = f"ended with exit code {code}" if code is not None else "has failed"
    return kind(
        found=f"{server.name} {how}{f': {reason}' if reason else ''}{_last(server)}",
        expected="a server that becomes ready and answers the known questions",
        remedy="mend what its lines name, then repeat",
    )


def _last(server: Placed) -> str:
    tail = server.tail(TAIL)
    advice = [f"{entry.means}: {entry.do}" for entry in explained(tail)]
    shown_lines = "".join(f"\n    {line}" for line in tail[-12:])
    return f"; its last lines:{shown_lines}" + "".join(f"\n  known: {text}" for text in advice)
