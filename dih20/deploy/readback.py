"""Compare what the engine made, and what a process inside sees, with what was asked: pure.

A limit that was asked for and not given shows up hours later as an NCCL or RDMA failure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dih20.errors import DeployError

UNLIMITED = -1
_NAMES = {"memlock": "Max locked memory", "stack": "Max stack size"}


@dataclass(frozen=True, kw_only=True)
class Shortfall:
    """One setting that is not what was asked."""

    what: str
    actual: str
    required: str


def inspect_shortfalls(asked: Mapping[str, Any], got: Mapping[str, Any]) -> list[Shortfall]:
    """Compare a create call's body with the engine's own description of the container."""
    wanted, made = asked["HostConfig"], got["HostConfig"]
    found: list[Shortfall] = []

    def expect(what: str, required: object, actual: object) -> None:
        if required != actual:
            found.append(Shortfall(what=what, actual=repr(actual), required=repr(required)))

    for key in ("IpcMode", "NetworkMode", "Init"):
        expect(key, wanted[key], made.get(key))
    expect("Privileged", False, made.get("Privileged"))
    expect("RestartPolicy", "no", (made.get("RestartPolicy") or {}).get("Name"))
    expect("LogConfig", wanted["LogConfig"], made.get("LogConfig"))
    expect("Ulimits", _by_name(wanted["Ulimits"]), _by_name(made.get("Ulimits") or []))
    expect(
        "DeviceRequests",
        _devices(wanted["DeviceRequests"]),
        _devices(made.get("DeviceRequests") or []),
    )
    expect("Mounts", _mounts(wanted["Mounts"]), _mounts(made.get("Mounts") or []))
    if "ShmSize" in wanted:
        expect("ShmSize", wanted["ShmSize"], made.get("ShmSize"))
    expect("Entrypoint", list(asked["Entrypoint"]), got["Config"].get("Entrypoint"))
    return found


def limit_shortfalls(text: str, *, memlock: int, stack: int) -> list[Shortfall]:
    """Compare /proc/PID/limits of a process inside with the limits asked; both soft and hard count."""
    found: list[Shortfall] = []
    for name, required in (("memlock", memlock), ("stack", stack)):
        match = re.search(rf"^{_NAMES[name]}\s+(\S+)\s+(\S+)", text, re.MULTILINE)
        actual = [_limit(value) for value in match.groups()] if match else []
        if not actual or any(_less(value, required) for value in actual):
            shown = "/".join(map(_shown, actual)) or "not readable"
            found.append(Shortfall(what=f"ulimit {name}", actual=shown, required=_shown(required)))
    return found


def mount_shortfalls(mountinfo: str, targets: Mapping[str, bool]) -> list[Shortfall]:
    """Look for each mount (target -> read only) in /proc/PID/mountinfo of a process inside."""
    seen = {
        fields[4]: fields[5].split(",")
        for line in mountinfo.splitlines()
        if len(fields := line.split()) > 5
    }
    found: list[Shortfall] = []
    for target, read_only in targets.items():
        options = seen.get(target)
        if options is None:
            found.append(
                Shortfall(what=f"mount {target}", actual="not mounted", required="mounted")
            )
        elif read_only and "ro" not in options:
            found.append(
                Shortfall(what=f"mount {target}", actual="read-write", required="read-only")
            )
    return found


def shm_shortfalls(df: str, required_bytes: int) -> list[Shortfall]:
    """Compare the size of /dev/shm inside (df -Pk) with what is required; the engine's default is 64 MiB."""
    fields = df.splitlines()[-1].split() if df.strip() else []
    actual = int(fields[1]) * 1024 if len(fields) > 1 and fields[1].isdigit() else 0
    if actual < required_bytes:
        mib = f"{actual >> 20} MiB"
        return [Shortfall(what="/dev/shm", actual=mib, required=f"{required_bytes >> 20} MiB")]
    return []


def require_none(shortfalls: list[Shortfall], host: str) -> None:
    """Raise DeployError that lists each setting with its actual and required value."""
    if not shortfalls:
        return
    raise DeployError(
        found=f"the container on {host} did not get what was asked: "
        + "; ".join(f"{s.what} is {s.actual}" for s in shortfalls),
        expected="; ".join(f"{s.what} {s.required}" for s in shortfalls),
        remedy=f"raise the limit that the engine of {host} has itself (LimitMEMLOCK of docker.service, size of "
        f"/dev/shm), or correct configs/hosts/{host}.yaml",
    )


def _by_name(ulimits: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    return {u["Name"]: (u["Soft"], u["Hard"]) for u in ulimits}


def _devices(requests: list[dict[str, Any]]) -> list[tuple[int, tuple[str, ...], object]]:
    return [(r["Count"], tuple(r.get("DeviceIDs") or ()), r["Capabilities"]) for r in requests]


def _mounts(mounts: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    return sorted((m["Source"], m["Target"], bool(m.get("ReadOnly"))) for m in mounts)


def _limit(text: str) -> int:
    return UNLIMITED if text == "unlimited" else int(text)


def _less(actual: int, required: int) -> bool:
    if actual == UNLIMITED:
        return False
    return required == UNLIMITED or actual < required


def _shown(limit: int) -> str:
    return "unlimited" if limit == UNLIMITED else str(limit)
