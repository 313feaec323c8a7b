"""Compare the three NCCLs of an image with the locked one: header, distribution, mapped library.

    python3 nccl.py --expect 2.32.3 [--json]         exit code 13 when one of them is another

torch pins an older NCCL, and any later pip step may bring it back; a build would then use one
version's header while the process maps another's library. Without torch nothing maps NCCL, and
that check is `not applicable`, which is not the same as ok.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

MISMATCH = 13
HEADER_PLACES = ("/opt/di/include", "/usr/include", "/usr/local/include", "/usr/local/cuda/include")
_DISTRIBUTION = re.compile(r"nvidia[-_.]nccl[-_.]cu\d+$", re.I)
_AFTER_TORCH = """
import json, torch
with open("/proc/self/maps") as maps:
    paths = sorted({line.split(None, 5)[5].strip() for line in maps if "libnccl" in line})
print("FACTS" + json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "mapped": paths}))
"""
_VERSION_OF = """
import ctypes, sys
number = ctypes.c_int()
assert ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(number)) == 0
print(number.value)
"""


def gather() -> dict[str, Any]:
    """Give the facts: header files, distributions, and libraries mapped once torch is imported."""
    return {"headers": headers(), "distributions": distributions(), **mapped_by_torch()}


def headers() -> dict[str, str]:
    """Give the version in every nccl.h that a compiler may find here."""
    places = [Path(place) for place in HEADER_PLACES]
    for scheme in ("purelib", "platlib"):
        places.append(Path(sysconfig.get_path(scheme)) / "nvidia" / "nccl" / "include")
    for entry in sys.path:
        places.append(Path(entry) / "nvidia" / "nccl" / "include")
    found: dict[str, str] = {}
    for place in places:
        header = place / "nccl.h"
        if header.is_file():
            found[str(header.resolve())] = header_version(header.read_text(errors="replace"))
    return found


def header_version(text: str) -> str:
    """Read MAJOR.MINOR.PATCH out of nccl.h."""
    parts = [
        re.search(rf"#define\s+NCCL_{name}\s+(\d+)", text) for name in ("MAJOR", "MINOR", "PATCH")
    ]
    return ".".join(part[1] if part else "?" for part in parts)


def distributions() -> dict[str, str]:
    """Give every installed NCCL distribution; two of them overwrite each other's files."""
    found = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if _DISTRIBUTION.match(name):
            found[re.sub(r"[-_.]+", "-", name).lower()] = distribution.version
    return found


def mapped_by_torch() -> dict[str, Any]:
    """Import torch in a process of its own and read which NCCL it mapped."""
    if importlib.util.find_spec("torch") is None:
        return {"torch": None, "cuda": None, "mapped": {}}
    done = subprocess.run(
        [sys.executable, "-c", _AFTER_TORCH], capture_output=True, text=True, check=False
    )
    line = next((text for text in done.stdout.splitlines() if text.startswith("FACTS")), None)
    if done.returncode != 0 or line is None:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"torch": "broken", "cuda": None, "mapped": {}, "problem": f"import torch: {last}"}
    facts = json.loads(line.removeprefix("FACTS"))
    facts["mapped"] = {path: library_version(path) for path in facts["mapped"]}
    return dict(facts)


def library_version(path: str) -> str:
    """Ask a libnccl for its version, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _VERSION_OF, path], capture_output=True, text=True, check=False
    )
    return version_text(int(done.stdout)) if done.returncode == 0 else "?"


def version_text(number: int) -> str:
    """Write NCCL's version number (23203) the way the lock does (2.32.3)."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def judge(facts: dict[str, Any], expected: str) -> list[tuple[str, str, str]]:
    """Give (check, ok | failed | not applicable, text) for header, distribution and mapped library."""
    verdicts = [_judge_headers(facts["headers"], expected)]
    verdicts.append(_judge_distributions(facts["distributions"], expected))
    verdicts.append(_judge_mapped(facts, expected))
    return verdicts


def _judge_headers(found: dict[str, str], expected: str) -> tuple[str, str, str]:
    if not found:
        return ("header", "failed", f"no nccl.h in {', '.join(HEADER_PLACES)} or site-packages")
    wrong = {path: version for path, version in found.items() if version != expected}
    status = "failed" if wrong else "ok"
    return ("header", status, _listed(wrong or found))


def _judge_distributions(found: dict[str, str], expected: str) -> tuple[str, str, str]:
    if not found:
        return ("distribution", "failed", "no nvidia-nccl-cu* distribution is installed")
    right = len(found) == 1 and set(found.values()) == {expected}
    return ("distribution", "ok" if right else "failed", _listed(found))


def _judge_mapped(facts: dict[str, Any], expected: str) -> tuple[str, str, str]:
    if facts["torch"] is None:
        return ("mapped library", "not applicable", "no torch in this image")
    if facts.get("problem"):
        return ("mapped library", "failed", facts["problem"])
    if facts["cuda"] is None:
        return ("mapped library", "not applicable", f"torch {facts['torch']} is built without CUDA")
    if not facts["mapped"]:
        return ("mapped library", "failed", f"importing torch {facts['torch']} mapped no libnccl")
    wrong = {path: version for path, version in facts["mapped"].items() if version != expected}
    return ("mapped library", "failed" if wrong else "ok", _listed(wrong or facts["mapped"]))


def _listed(found: dict[str, str]) -> str:
    return ", ".join(f"{version} ({name})" for name, version in sorted(found.items()))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description="NCCL of header, distribution and process against the lock"
    )
    parser.add_argument("--expect", required=True, help="a version, or a file that holds one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    place = Path(options.expect)
    expected = place.read_text().strip() if place.is_file() else options.expect
    facts = gather()
    verdicts = judge(facts, expected)
    failed = [verdict for verdict in verdicts if verdict[1] == "failed"]
    if options.json:
        print(json.dumps({"expected": expected, "facts": facts, "verdicts": verdicts}))
        return MISMATCH if failed else 0
    for check, status, text in verdicts:
        print(f"nccl {check}: {status}: {text}")
    for check, _, text in failed:
        print(f"error: nccl {check} is {text}, the lock says {expected}", file=sys.stderr)
    return MISMATCH if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
