"""Is exactly one NCCL mapped once torch is imported, and is it the bundle's?

torch of 2.11 and newer loads the NVIDIA libraries that it finds along sys.path, so a folder in front
of site-packages is enough. An older one loads NCCL by a path of its own and is refused.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from dih20.bundle.onhost.layout import Layout
from dih20.errors import NcclMismatch

_PROBE = """
import ctypes, json, torch
with open("/proc/self/maps") as maps:
    paths = sorted({line.split(None, 5)[5].strip() for line in maps if "libnccl.so" in line})
versions = {}
for path in paths:
    number = ctypes.c_int()
    ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number))
    n = number.value
    versions[path] = f"{n // 10000}.{n // 100 % 100}.{n % 100}"
print("FACTS" + json.dumps(versions))
"""


def check(layout: Layout, manifest: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:  # fmt: skip
    """Give version, library and its hash; NcclMismatch when another one, or two, are mapped."""
    found = mapped(environment)
    bundled = manifest["nccl"]
    if bundled is None:
        return {"version": "; ".join(found.values()), "library": "the host's", "thinned": None}
    library = layout.nccl / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    if found != {str(library): bundled["version"]}:
        shown = "; ".join(f"{version} ({path})" for path, version in found.items()) or "none"
        raise NcclMismatch(
            found=f"NCCL mapped once torch is imported: {shown}",
            expected=f"exactly one, {bundled['version']} ({library}), which DeepEP is linked with",
            remedy="unset LD_PRELOAD and LD_LIBRARY_PATH; see that no sitecustomize imports torch or NCCL first",
        )
    with library.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    thinned = bundled["thinned"]
    if not thinned and digest != bundled["whole_sha256"]:
        raise NcclMismatch(
            found=f"{library}: sha256 {digest[:12]}...",
            expected=f"{bundled['whole_sha256'][:12]}..., NCCL {bundled['version']} as released",
            remedy="remove the folder and install the bundle again",
        )
    return {"version": bundled["version"], "library": digest, "thinned": thinned}


def mapped(environment: Mapping[str, str]) -> dict[str, str]:
    """Give the version of each libnccl that a new Python maps with torch."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], env=dict(environment), capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    line = next((t for t in done.stdout.splitlines() if t.startswith("FACTS")), "")
    if done.returncode != 0 or not line:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise NcclMismatch(
            found=f"torch cannot be imported with the bundle's packages: {last}",
            expected="NCCL mapped once torch is imported",
            remedy="see that it can without them: python3 -c 'import torch'",
        )
    found: dict[str, str] = json.loads(line.removeprefix("FACTS"))
    return found
