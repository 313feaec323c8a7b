"""Run debootstrap into a folder: its output to a log file, a line per phase to the console."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dih20.console import Console
from dih20.errors import ImageError
from dih20.paths import shown

_PHASES = {
    "I: Retrieving ": "retrieving packages",
    "I: Extracting ": "extracting the required packages",
    "I: Unpacking the base": "unpacking the rest",
    "I: Configuring ": "configuring",
}


def check_machine() -> None:
    """Raise ImageError when this machine cannot run debootstrap: who runs it, which program lacks."""
    if os.geteuid() != 0:
        raise ImageError(
            found=f"user id {os.geteuid()} makes the stand-in base",
            expected="root: debootstrap makes device nodes and changes its root folder",
            remedy="run the same command as root",
        )
    for program in ("debootstrap", "dpkg-deb", "chroot"):
        if shutil.which(program, path=_search_path()) is None:
            raise ImageError(
                found=f"{program} is not on this machine",
                expected="debootstrap, dpkg-deb and chroot, which make the stand-in base out of packages",
                remedy=f"apt-get install {'coreutils' if program == 'chroot' else program.split('-')[0]}",
            )


def bootstrap(
    ui: Console,
    *,
    suite: str,
    architecture: str,
    packages: Sequence[str],
    mirror: Path,
    root: Path,
    log: Path,
) -> None:
    """Fill `root` from a mirror in a folder; on failure raise ImageError with debootstrap's own lines."""
    command = ["debootstrap", "--variant=minbase", "--no-check-gpg", "--merged-usr"]
    command += [
        f"--arch={architecture}",
        f"--include={','.join(packages)}",
        suite,
        str(root),
        f"file://{mirror}",
    ]
    log.parent.mkdir(parents=True, exist_ok=True)
    phase = ""
    with log.open("w") as out:
        env = {"PATH": _search_path(), "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        env["DPKG_FORCE"] = "unsafe-io"  # nothing here must survive a power cut
        env |= {
            name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")
        }
        with subprocess.Popen(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                out.write(line)
                now = next(
                    (text for start, text in _PHASES.items() if line.startswith(start)), phase
                )
                if now != phase:
                    phase = now
                    ui.line(f"  debootstrap {suite}: {phase} ...", style="dim")
    if process.returncode != 0:
        raise ImageError(
            found=f"debootstrap {suite} exited {process.returncode}:\n{_error_lines(log, root)}",
            expected=f"a base system of the {len(packages)} locked packages",
            remedy=f"mend what it names; full log: {shown(log)}",
        )


def installed_packages(root: Path) -> dict[str, str]:
    """Give name -> version of what the package database in `root` says is installed."""
    packages: dict[str, str] = {}
    for paragraph in (root / "var/lib/dpkg/status").read_text(errors="replace").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line[:40])
        if fields.get("Status") == "install ok installed":
            packages[fields["Package"]] = fields["Version"]
    return dict(sorted(packages.items()))


def compile_python(root: Path) -> None:
    """Write byte code that holds no time: the files are read far more often than they are packed.

    Checked by nothing at run time (unchecked hash), since a package's files never change in place.
    """
    for folder in sorted(root.glob("usr/**/__pycache__")):
        shutil.rmtree(folder)
    libraries = [f"/{p.relative_to(root)}" for p in sorted(root.glob("usr/lib/python3*"))]
    command = ["chroot", str(root), "/usr/bin/python3", "-m", "compileall", "-qq"]
    command += ["--invalidation-mode", "unchecked-hash", *libraries]
    # A fixed hash seed: the order of sets is written into byte code. And what compileall itself imports
    # must not be written on import, or it would be taken for compiled already.
    env = {
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise ImageError(
            found=f"python in the new base could not compile its library:\n{done.stdout[-800:]}{done.stderr[-800:]}",
            expected="byte code for every file of /usr/lib/python3*",
            remedy="add python3 to images/stand-in/packages.txt, or mend what the lines name",
        )


@contextmanager
def scratch_root(parent: Path) -> Iterator[Path]:
    """Give a folder for a root file system and remove it after, never through a mount left inside."""
    parent.mkdir(parents=True, exist_ok=True)
    root = parent / f"root.{os.getpid()}"
    root.mkdir(mode=0o755)
    try:
        yield root
    finally:
        inside = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((m for m in inside if m.startswith(f"{root}/")), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
        subprocess.run(["rm", "-rf", "--one-file-system", str(root)], check=False)


def _search_path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"


def _error_lines(log: Path, root: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    inner = root / "debootstrap" / "debootstrap.log"
    if inner.exists():
        lines += inner.read_text(errors="replace").splitlines()[-200:]
    wanted = [
        line
        for line in lines
        if line.startswith(("E:", "W: Failure", "dpkg: error", "Errors were"))
    ]
    return "\n".join((wanted or lines)[-10:])
