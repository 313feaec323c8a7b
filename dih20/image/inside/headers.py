"""Make the header overlay out of wheels, and name every header that is missing, in one report.

    python3 headers.py overlay --facts headers.json --into /opt/di/include DIR...   unpack, then check
    python3 headers.py check --facts headers.json                                   check only

Exit code 12 when a header is missing, belongs to another CUDA release, or two wheels disagree.
The facts file holds what the lock and images/di-h20/headers.yaml say: see dih20.image.headers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

MISMATCH = 12
OVERLAY = Path("/opt/di/include")
TOOLKIT = Path("/usr/local/cuda")
SYSTEM = (
    "/usr/local/include",
    "/usr/include",
    "/usr/include/x86_64-linux-gnu",
    "/usr/include/aarch64-linux-gnu",
)
_HEADER_MEMBER = re.compile(r"^nvidia/[^/]+/include/(?P<name>.+)$")


def search_places(environment: dict[str, str]) -> dict[str, list[Path]]:
    """Give the folders that a compiler looks into, by place; CPATH decides what of ours it sees."""
    cpath = [Path(entry) for entry in environment.get("CPATH", "").split(":") if entry]
    return {
        "overlay": cpath,
        "system": [*cpath, *(Path(place) for place in SYSTEM)],
        "toolkit": [*cpath, TOOLKIT / "include", TOOLKIT / "include" / "cccl"],
    }


def missing(required: dict[str, Any], places: dict[str, list[Path]]) -> list[dict[str, str]]:
    """Give every required header that no folder of its place holds, with the package that supplies it."""
    return [
        {"header": header, "package": entry["package"], "place": entry["place"]}
        for header, entry in sorted(required.items())
        if not any((folder / header).is_file() for folder in places[entry["place"]])
    ]


def report(found: list[dict[str, str]]) -> list[str]:
    """Give one line per package, with all of its headers that are missing."""
    packages: dict[str, list[str]] = {}
    for entry in found:
        packages.setdefault(entry["package"], []).append(entry["header"])
    return [
        f"missing: {', '.join(names)}: supplied by {package}"
        for package, names in sorted(packages.items())
    ]


def nvcc_release(toolkit: Path = TOOLKIT) -> str | None:
    """Give the release that nvcc reports ("13.0"), or None when the image has no nvcc."""
    nvcc = toolkit / "bin" / "nvcc"
    if not nvcc.exists():
        return None
    done = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"release (\d+\.\d+)", done.stdout)
    return match[1] if match else None


def wrong_release(wheels: dict[str, Any], release: str) -> list[str]:
    """Give a line for each header wheel of another CUDA release."""
    return [
        f"{name} {entry['version']} belongs to CUDA {entry['cuda']}, nvcc is CUDA {release}"
        for name, entry in sorted(wheels.items())
        if entry["cuda"] is not None and entry["cuda"] != release
    ]


def unpack(wheels: list[Path], into: Path) -> list[str]:
    """Write the headers of all wheels into the overlay; give a line for each header two wheels disagree on."""
    target = into.resolve()
    if target == TOOLKIT.resolve() or TOOLKIT.resolve() in target.parents:
        return [f"{into} lies in the CUDA toolkit, which is never written to"]
    owners: dict[str, tuple[str, int]] = {}
    conflicts = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                match = _HEADER_MEMBER.match(member.filename)
                if match is None or member.is_dir() or member.filename.endswith("__init__.py"):
                    continue
                name = match["name"]
                owner, checksum = owners.setdefault(name, (wheel.name, member.CRC))
                if checksum != member.CRC:
                    conflicts.append(f"{name} differs between {owner} and {wheel.name}")
                    continue
                place = into / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(archive.read(member))
                place.chmod(0o644)
    return conflicts


def check(facts: dict[str, Any], environment: dict[str, str], only: tuple[str, ...]) -> list[str]:
    """Give every fault at once: all missing headers by package, and all wheels of another release."""
    release = nvcc_release() or facts["nvcc"]
    required = {name: entry for name, entry in facts["required"].items() if entry["place"] in only}
    faults = report(missing(required, search_places(environment)))
    return faults + wrong_release(facts["wheels"], release)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="the header overlay")
    parser.add_argument("action", choices=["overlay", "check"])
    parser.add_argument("--facts", required=True, type=Path)
    parser.add_argument("--into", type=Path, default=OVERLAY)
    parser.add_argument("folders", nargs="*", type=Path)
    options = parser.parse_args(argv)
    facts = json.loads(options.facts.read_text())
    places = ["overlay", "system"]
    faults = []
    if options.action == "overlay":
        wheels = sorted(path for folder in options.folders for path in folder.glob("*.whl"))
        faults = unpack(wheels, options.into)
        places = ["overlay"]
    elif nvcc_release() is not None:
        places.append("toolkit")
    else:
        print("headers of the toolkit: not applicable: no nvcc in this image, builds mount one")
    faults += check(facts, dict(os.environ), tuple(places))
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    if not faults:
        count = sum(entry["place"] in places for entry in facts["required"].values())
        print(f"headers: ok: {count} found, CUDA {nvcc_release() or facts['nvcc']}")
    return MISMATCH if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
