"""Render the status page on the server: its script only carries newer parts into the page shown.

So the page says the same with and without JavaScript, and there is one place that words it.
Text from outside (an error, a progress line) is escaped, and the policy in HEADERS allows no
script and no style but the two that this module hashed.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from dih20.serve.page.status import Status

HERE = Path(__file__).parent
START = ("starting", "loading", "warming", "gating")
WORDS = {
    "starting": "Starting",
    "loading": "Loading",
    "warming": "Warming up",
    "gating": "Asking known questions",
    "ready": "Ready",
    "draining": "Draining",
    "failed": "Failed",
    "stopped": "Stopped",
}
TONES = {"ready": "good", "failed": "bad", "stopped": "bad"}
GIB = 1 << 30


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


STYLE = (HERE / "status.css").read_text(encoding="utf-8")
SCRIPT = (HERE / "status.js").read_text(encoding="utf-8")
HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": (
        f"default-src 'none'; style-src {_hash(STYLE)}; script-src {_hash(SCRIPT)}; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
}


def render(status: Status) -> str:
    """Give the whole page for one moment of the server."""
    percent = None if status.fraction is None else round(100 * min(max(status.fraction, 0), 1))
    return _template().render(
        s=status,
        style=Markup(STYLE),
        script=Markup(SCRIPT),
        word=WORDS.get(status.state, status.state),
        tone=TONES.get(status.state, "busy"),
        summary=_summary(status),
        gate=_gate(status),
        is_starting=status.state in START,
        phases=[{"name": name, "mark": _mark(name, status.state)} for name in START],
        percent=percent,
        numbers=_numbers(status),
        gpus=[_gpu(gpu.index, gpu.used_bytes, gpu.total_bytes) for gpu in status.gpus],
        last_error=_last_error(status),
        identities=list(status.identities.items()),
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string((HERE / "status.html").read_text(encoding="utf-8"))


def _summary(status: Status) -> str:
    if status.state in START:
        rest = "" if status.eta_s is None else f", about {duration(status.eta_s)} to go"
        return f"{duration(status.elapsed_s)} since the start{rest}"
    if status.reason:
        return status.reason
    return f"{WORDS.get(status.state, status.state)} for {duration(status.phase_elapsed_s)}"


def _gate(status: Status) -> str:
    evidence = f" ({status.gate_evidence})" if status.gate_evidence else ""
    return (status.gate or "not asked yet") + evidence


def _mark(name: str, state: str) -> str:
    if state not in START:
        return "done" if state in ("ready", "draining") else "next"
    order = START.index(name) - START.index(state)
    return "now" if order == 0 else "done" if order < 0 else "next"


def _numbers(status: Status) -> list[dict[str, str]]:
    step = status.last_step_age_s
    rows: list[tuple[str, str, Any]] = [
        ("running", "Requests running", status.running),
        ("waiting", "Requests waiting", f"{status.waiting} of {status.queue_limit}"),
        ("tokens-per-s", "Tokens per second", f"{status.tokens_per_s:.1f}"),
        ("tokens-total", "Tokens in all", f"{status.tokens_total:,}"),
        ("finished", "Requests answered", f"{status.finished:,}"),
        ("refused", "Requests refused", f"{status.refused:,}"),
        ("failures", "Requests failed", f"{status.failed:,}"),
        ("last-step", "Last engine step", "none yet" if step is None else f"{duration(step)} ago"),
    ]
    return [{"id": key, "label": label, "value": str(value)} for key, label, value in rows]


def _gpu(index: int, used: int, total: int) -> dict[str, Any]:
    percent = round(100 * used / total) if total else 0
    return {
        "index": index,
        "percent": percent,
        "text": f"{used / GIB:.1f} of {total / GIB:.1f} GiB",
    }


def _last_error(status: Status) -> str:
    if not status.last_error:
        return "none"
    age = status.last_error_age_s
    return status.last_error if age is None else f"{duration(age)} ago: {status.last_error}"


def duration(seconds: float) -> str:
    """Give a length of time in at most two units: `0.4 s`, `12 s`, `3 min 5 s`, `2 h 7 min`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
