"""Make or re-sync the virtual environment from a hash-pinned lock; run by ./inv, standard library only.

usage: bootstrap.py VENV LOCK STAMP

Two starts at once are safe: the work happens under a file lock, and the second start finds the
stamp of the first. The stamp is removed first and written last, so an environment that a broken
download left half made is completed by the next start and never used before.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STAMP = ".lock-stamp"


def is_current(folder: Path, stamp: str) -> bool:
    """Say whether an environment was finished from the lock with this stamp, and has its python still."""
    try:
        return (folder / STAMP).read_text().strip() == stamp and (folder / "bin/python").exists()
    except OSError:
        return False


def install(folder: Path, lock: Path, stamp: str) -> None:
    """Build the environment in place: scripts inside hold its path, so it must not move later."""
    if folder.exists() and not (folder / "pyvenv.cfg").exists() and any(folder.iterdir()):
        sys.exit(
            f"inv: {folder} exists and is not a virtual environment; move it away, then run ./inv again"
        )
    (folder / STAMP).unlink(missing_ok=True)
    if not working(folder):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            venv.create(folder, with_pip=True, symlinks=True)
        except (subprocess.CalledProcessError, SystemExit):  # Debian's venv exits by itself
            shutil.rmtree(folder, ignore_errors=True)
            version = ".".join(map(str, sys.version_info[:2]))
            sys.exit(
                f"inv: python {version} at {sys.executable} cannot put pip into a virtual environment; "
                f"install python{version}-venv (Debian, Ubuntu) or a complete python, then run ./inv again"
            )
    command = [
        str(folder / "bin/python"),
        "-m",
        "pip",
        "install",
        "-qq",
        "--disable-pip-version-check",
    ]
    command += ["--require-hashes", "--only-binary=:all:", "-r", str(lock)]
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode != 0:
        sys.exit(
            f"inv: pip could not install {lock.name} (its own lines are above); expected every pinned file at the "
            "configured package index; check the network, proxy or mirror settings of pip, then run ./inv again"
        )
    (folder / STAMP).write_text(stamp + "\n")


def working(folder: Path) -> bool:
    """Say whether the environment's own interpreter still starts and has pip."""
    python = folder / "bin/python"
    if not python.exists():
        return False
    probe = subprocess.run(
        [str(python), "-m", "pip", "--version"], check=False, capture_output=True
    )
    return probe.returncode == 0


@contextmanager
def only_start(folder: Path) -> Iterator[None]:
    """Let one start at a time work on an environment, and say so where another one does.

    As dih20.file_guard does it; before the environment is there nothing of ours can be imported.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f".{folder.name.lstrip('.')}.guard"
    with path.open("a+") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            guard.seek(0)
            holder = guard.read().strip() or "unknown"
            print(f"inv: waiting for {path}, held by process {holder}", file=sys.stderr)
            fcntl.flock(guard, fcntl.LOCK_EX)
        guard.truncate(0)
        print(os.getpid(), file=guard, flush=True)
        yield
        guard.truncate(0)


def bring_up(folder: Path, lock: Path, stamp: str) -> None:
    """Have the environment, made or completed when it is not the lock's."""
    with only_start(folder):
        if is_current(folder, stamp):
            return
        started = time.monotonic()
        print(f"inv: setting up {folder.name} from {os.path.relpath(lock)} ...", file=sys.stderr)
        install(folder, lock, stamp)
        print(f"inv: ready after {time.monotonic() - started:.1f} s", file=sys.stderr)


def main() -> int:
    folder, lock, stamp = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    try:
        bring_up(folder, lock, stamp)
    except KeyboardInterrupt:
        print(
            "inv: interrupted; what is half made is completed by the next ./inv and not used before",
            file=sys.stderr,
        )
        return 130
    except OSError as fault:
        print(
            f"inv: no environment can be made at {folder}: {fault}; expected a folder that "
            "this user may write, on a disk with room; set DI_VENV to such a path, then run ./inv again",
            file=sys.stderr,
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
