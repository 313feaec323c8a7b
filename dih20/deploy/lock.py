"""One deploy to a host at a time: a folder made there is the lock, a file in it says who holds it."""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dih20.errors import DeployLocked
from dih20.hosts.runner import Runner

_STALE_AFTER_S = 2 * 3600
# Whoever makes the folder writes its name into it next, and removes the name first: both take a moment.
_NOTE_WITHIN_S = 3.0
_LOOK_EVERY_S = 0.2


@contextmanager
def deploy_lock(runner: Runner, work_dir: str, what: str) -> Iterator[None]:
    """Hold the host's deploy lock; DeployLocked names the holder and says when it looks stale."""
    folder = f"{work_dir}/.deploy-lock"
    runner.run(["mkdir", "-p", "--", work_dir])
    if not runner.run(["mkdir", "--", folder], check=False).ok:
        raise _locked(runner, folder)
    holder = {
        "who": f"{getpass.getuser()}@{socket.gethostname()}",
        "pid": os.getpid(),
        "since": int(time.time()),
        "what": what,
    }
    try:
        note = json.dumps(holder).encode()
        runner.run(["sh", "-c", 'cat > "$1"', "sh", f"{folder}/holder"], stdin=note)
        yield
    finally:
        runner.run(["rm", "-rf", "--", folder])


def _locked(runner: Runner, folder: str) -> DeployLocked:
    note = _note(runner, folder)
    if note is None:
        return DeployLocked(
            found=f"the lock {folder} on {runner.name} could not be made, and is not there either",
            expected="a folder that this login may write to, or a lock that was just released",
            remedy=f"repeat; if it happens again, see who may write to {folder.rpartition('/')[0]}",
        )
    try:
        holder = json.loads(note)
        age_s = max(0, int(time.time()) - int(holder["since"]))
        text = f"{holder['who']}, pid {holder['pid']}, since {age_s // 60} min ({holder['what']})"
    except (ValueError, KeyError, TypeError):
        holder, age_s, text = {}, 0, "no one named: its holder file is not there or not readable"
    stale = _why_stale(holder, age_s)
    remedy = f"when it is surely over, run `rm -r {folder}` on {runner.name}, then repeat"
    return DeployLocked(
        found=f"another deploy to {runner.name} holds the lock: {text}{f'; it looks stale: {stale}' if stale else ''}",
        expected="one deploy at a time",
        remedy=remedy if stale else f"wait for it to end; {remedy}",
    )


def _note(runner: Runner, folder: str) -> str | None:
    """Give what the holder says of itself; "" when it says nothing for a while, None without a lock."""
    until = time.monotonic() + _NOTE_WITHIN_S
    while True:
        read = runner.run(["cat", "--", f"{folder}/holder"], check=False)
        if read.ok and read.text:
            return read.text
        if not runner.run(["test", "-d", folder], check=False).ok:
            return None
        if time.monotonic() > until:
            return ""
        time.sleep(_LOOK_EVERY_S)


def _why_stale(holder: dict[str, object], age_s: int) -> str:
    here = f"@{socket.gethostname()}"
    pid = holder.get("pid")
    if str(holder.get("who", "")).endswith(here) and isinstance(pid, int) and not _lives(pid):
        return f"process {pid} of this machine is gone"
    if age_s > _STALE_AFTER_S:
        return f"it is older than {_STALE_AFTER_S // 3600} hours"
    return "" if holder else "it names no holder"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
