"""Optional package groups, installed into the running environment by the tasks that need them.

`base` comes from the launcher. `dev` is for tests and linters, `serve` for the server, `torch` for reference numerics on
this machine, `tilelang` for cross-compiling operators. Each is a hash-pinned lock in requirements/.
torch has one version and several accepted files: CPU and CUDA builds differ, and each file's hash
is listed. A CPU build that lies in pip's find-links (torch-local.lock) is taken first; when pip
takes a CUDA build instead, its runtime wheels come from torch-cuda.lock.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from dih20.console import Console
from dih20.errors import FetchError, UsageError
from dih20.file_guard import only_holder
from dih20.paths import REPOSITORY

GROUPS = ("dev", "serve", "torch", "torch-cuda", "tilelang")
_WITHOUT_DEPENDENCIES = ("torch", "torch-cuda", "tilelang")  # their locks list everything they need


def ensure(ui: Console, group: str) -> None:
    """Install a group unless the environment already has exactly its lock."""
    lock = _lock(group)
    stamp = Path(sys.prefix) / f".lock-stamp-{group}"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    with only_holder(Path(sys.prefix) / ".groups.guard", ui.line):
        if not (stamp.exists() and stamp.read_text() == wanted):
            with ui.step("install", f"packages of {lock.name}"):
                _install(group, lock)
            stamp.write_text(wanted)
    if group == "torch" and _torch_is_cuda_build():
        ensure(ui, "torch-cuda")


def _lock(group: str) -> Path:
    if group not in GROUPS:
        raise UsageError(
            found=f"no package group {group!r}",
            expected=f"one of {', '.join(GROUPS)}",
            remedy="correct the name",
        )
    if sys.prefix == sys.base_prefix and not os.environ.get("DI_PYTHON"):
        raise UsageError(
            found=f"python at {sys.prefix} is not a virtual environment",
            expected=f"one, to install the packages of requirements/{group}.lock into",
            remedy="run the task through ./inv, or make and activate a virtual environment",
        )
    return REPOSITORY / "requirements" / f"{group}.lock"


def _install(group: str, lock: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    command += ["--require-hashes", "--only-binary=:all:"]
    if group in _WITHOUT_DEPENDENCIES:
        command.append("--no-deps")
    local = lock.with_name(f"{group}-local.lock")
    if local.exists():
        # pip prefers an index's file whenever hashes are asked for, so the local one needs a call of its own;
        # where there is none this fails at once, and the call below takes a file of the index
        first = [*command, "--no-index", "-r", str(local)]
        subprocess.run(first, check=False, capture_output=True)
    command += ["-r", str(lock)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        lines = [
            line for line in done.stderr.splitlines() if "ERROR" in line
        ] or done.stderr.splitlines()
        raise FetchError(
            found=f"pip could not install requirements/{lock.name}:\n" + "\n".join(lines[-8:]),
            expected="every pinned file, with a listed hash, at pip's configured index",
            remedy="mend the index, proxy or mirror settings of pip, then run the task again",
        )


def _torch_is_cuda_build() -> bool:
    try:
        needed = metadata.distribution("torch").requires or []
    except metadata.PackageNotFoundError:
        return False
    return any(requirement.startswith(("nvidia-", "cuda-")) for requirement in needed)
