"""Write every lock of this folder again: python requirements/relock.py (needs `uv` on PATH).

base.lock, serve.lock and dev.lock hold every platform. The locks of the heavy groups hold the files of Linux
x86_64 for the Pythons below and are split by what needs them: torch.lock (torch and its pure
dependencies), torch-cuda.lock (what a CUDA build of torch needs besides), tilelang.lock (the rest).
Only names, versions and hashes are written. torch-local.lock is kept by hand; its hashes are added to
torch.lock, so that the two never disagree about what is accepted.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PYTHONS = ("3.11", "3.12", "3.13")
CUDA_PREFIXES = ("nvidia-", "cuda-", "triton")

Locked = dict[tuple[str, str], set[str]]


def write_universal(group: str, after: tuple[str, ...] = ()) -> None:
    """Write base.lock, serve.lock or dev.lock: one resolution for every platform."""
    command = ["uv", "pip", "compile", "-q", "--universal", "--python-version", PYTHONS[0]]
    command += ["--generate-hashes", "--no-emit-index-url", "--no-emit-find-links"]
    command += ["--no-annotate", "--no-header", f"{group}.in", "-o", f"{group}.lock"]
    for other in after:
        command += ["-c", f"{other}.lock"]
    subprocess.run(command, cwd=FOLDER, check=True)


def resolve(group: str, python: str, constraints: Path) -> Locked:
    """Give name, version -> hashes of the files that Linux x86_64 takes under one Python."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "pylock.toml"
        command = ["uv", "pip", "compile", "-q", "--format", "pylock.toml", "-o", str(out)]
        command += ["--python-platform", "x86_64-manylinux_2_28", "--python-version", python]
        command += ["-c", str(constraints), f"{group}.in"]
        subprocess.run(command, cwd=FOLDER, check=True)
        packages = tomllib.loads(out.read_text())["packages"]
    return {
        (package["name"], package["version"]): {
            f"sha256:{wheel['hashes']['sha256']}" for wheel in package.get("wheels", [])
        }
        for package in packages
    }


def resolve_all(group: str, constraints: Path) -> Locked:
    """Resolve for the oldest Python, then take the same versions' files for the others."""
    locked = resolve(group, PYTHONS[0], constraints)
    versions = "".join(f"{name}=={version}\n" for name, version in locked)
    constraints.write_text(constraints.read_text() + versions)
    for python in PYTHONS[1:]:
        for key, hashes in resolve(group, python, constraints).items():
            locked.setdefault(key, set()).update(hashes)
    return locked


def write(group: str, locked: Locked, keep: Callable[[str], bool]) -> None:
    """Write the packages whose name passes, in the form that pip reads."""
    lines = []
    for (name, version), hashes in sorted(locked.items()):
        if keep(name):
            assert hashes, f"{name} {version} has no wheel for Linux x86_64"
            lines.append(" \\\n    --hash=".join([f"{name}=={version}", *sorted(hashes)]))
    (FOLDER / f"{group}.lock").write_text("\n".join(lines) + "\n")


def pinned(lock: Path) -> list[str]:
    """Give the `name==version` lines of a lock, without markers and hashes."""
    return [
        line.split()[0] for line in lock.read_text().splitlines() if "==" in line and line[0] != " "
    ]


def main() -> None:
    write_universal("base")
    write_universal("serve", after=("base",))
    write_universal("dev", after=("base", "serve"))
    with tempfile.TemporaryDirectory() as scratch:
        constraints = Path(scratch) / "constraints.txt"
        # one environment holds all groups, so a package has one version in all of them
        constraints.write_text("\n".join(pinned(FOLDER / "dev.lock")) + "\n")
        torch = resolve_all("torch", constraints)
        (local,) = pinned(FOLDER / "torch-local.lock")
        name, version = local.split("==")
        torch[name, version].update(
            re.findall(r"sha256:[0-9a-f]{64}", (FOLDER / "torch-local.lock").read_text())
        )
        tilelang = resolve_all("tilelang", constraints)
    write("torch", torch, lambda name: not name.startswith(CUDA_PREFIXES))
    write("torch-cuda", torch, lambda name: name.startswith(CUDA_PREFIXES))
    known = {name for name, _ in torch}
    write("tilelang", tilelang, lambda name: name not in known)


if __name__ == "__main__":
    main()
