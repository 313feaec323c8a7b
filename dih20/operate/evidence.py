"""Bring home what a failed start left on its host, in one folder."""

from __future__ import annotations

import json
import time
from pathlib import Path

from dih20.hosts.runner import Runner
from dih20.operate.hosted import HostServer
from dih20.paths import build_dir

_LOG_LINES = 20_000
_FROM_THE_HOST = {
    "dmesg.txt": "dmesg -T 2>&1 | tail -n 400",
    "nvidia-smi.txt": "nvidia-smi 2>&1; nvidia-smi -q -d ECC,ROW_REMAPPER,MEMORY 2>&1",
    "processes.txt": "ps -eo pid,ppid,stat,rss,etimes,args 2>&1",
    "ports.txt": "ss -ltnp 2>&1",
    "disk.txt": "df -h 2>&1; free -m 2>&1",
}


def bring_home(server: HostServer, reason: str) -> Path:
    """Give the folder under build/logs; what cannot be had says so in its own file."""
    folder = build_dir() / "logs" / f"serve-{server.where}-{time.strftime('%Y%m%dT%H%M%S')}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reason.txt").write_text(reason + "\n", encoding="utf-8")
    (folder / "container.log").write_bytes(server.made.logs(tail=_LOG_LINES, timestamps=True))
    server.made.reload()
    (folder / "inspect.json").write_text(json.dumps(server.made.attrs, indent=1))
    (folder / "settings.json").write_text(json.dumps(server.settings(), indent=1))
    start = server.endpoint.get("/startupz") if server.life().is_running else None
    (folder / "startupz.json").write_bytes(start.body if start else b'"nothing answered"\n')
    for name, script in _FROM_THE_HOST.items():
        (folder / name).write_bytes(_said(server.session.runner, script))
    return folder


def _said(runner: Runner, script: str) -> bytes:
    done = runner.run(["sh", "-c", script], check=False, timeout_s=60)
    return done.stdout or done.stderr or f"exited {done.exit_code} and said nothing\n".encode()
