"""Install the wheels of a folder offline, exactly as locked, and prove that torch was not moved.

    python3 pip_install.py /mnt/nccl        the folder holds wheels and requirements.txt with hashes

--no-deps, since the list is complete and what it leaves out (torch) must not be asked for. A package
of the distribution has no record of its files, so pip cannot remove it: ours is put in front of it.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

PIP = (
    *(sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--require-hashes"),
    *("--no-cache-dir", "--no-compile", "--disable-pip-version-check", "--no-input"),
    *("--progress-bar", "off", "--break-system-packages", "--root-user-action", "ignore"),
)


def torch_identity() -> str:
    """Give version and a hash over size and time of each file of the installed torch.

    The version alone says too little: builds differ under one version, and another wheel may write
    into torch's folder.
    """
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return "none"
    seen = hashlib.sha256()
    for file in sorted(torch.files or [], key=str):
        try:
            facts = Path(str(torch.locate_file(file))).stat()
            seen.update(f"{file} {facts.st_size} {facts.st_mtime_ns}\n".encode())
        except FileNotFoundError:
            seen.update(f"{file} missing\n".encode())
    return f"{torch.version} (files {seen.hexdigest()[:12]})"


def split(requirements: list[str]) -> tuple[list[str], list[str]]:
    """Give (what pip can replace, what it cannot because nobody recorded its files)."""
    stuck = [
        line for line in requirements if _has_no_record(re.split(r"[=\s]", line, maxsplit=1)[0])
    ]
    return [line for line in requirements if line not in stuck], stuck


def _has_no_record(name: str) -> bool:
    try:
        return metadata.distribution(name).read_text("RECORD") is None
    except metadata.PackageNotFoundError:
        return False


def install(folder: Path, lines: list[str], *options: str) -> int:
    if not lines:
        return 0
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write("\n".join(lines) + "\n")
        listed.flush()
        # No configuration of the image may add an index or a constraint.
        env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        env["PIP_CONFIG_FILE"] = os.devnull
        command = [*PIP, *options, "--find-links", str(folder), "--requirement", listed.name]
        return subprocess.run(command, env=env, check=False).returncode


def main(argv: list[str]) -> int:
    folder = Path(argv[0])
    lines = [
        line for line in (folder / "requirements.txt").read_text().splitlines() if line.strip()
    ]
    before = torch_identity()
    free, stuck = split(lines)
    code = install(folder, free) or install(folder, stuck, "--ignore-installed")
    after = torch_identity()
    if code == 0 and after != before:
        print(
            f"error: pip changed torch from {before} to {after}; torch must stay the base's",
            file=sys.stderr,
        )
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
