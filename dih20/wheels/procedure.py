"""How every wheel is built, whatever its recipe: part of its identity, since it decides its bytes."""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path
from typing import Final

from dih20.source_date import SOURCE_DATE_EPOCH
from dih20.wheels.identity import digest_of
from dih20.wheels.recipes import Recipe

INSIDE: Final = Path(__file__).resolve().parent / "inside"
SCRIPTS: Final = ("build_wheel.sh", "sorted_listing.py")
FORMAT: Final = 1  # raise it when what is done with a built wheel changes: repack, provenance
SOURCE: Final = "/build/source"
# Files then name their sources as "./csrc/x.cpp", in assertions and debug information alike.
_PREFIX_MAP: Final = f"-ffile-prefix-map={SOURCE}=."

FIXED: Final = {
    "HOME": "/build/home",
    "TMPDIR": "/build/tmp",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "SOURCE_DATE_EPOCH": str(SOURCE_DATE_EPOCH),
    "PYTHONPATH": "/build/site",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PIP_NO_INDEX": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    # Trust this one copied checkout, whoever owns it, and no other folder.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": SOURCE,
}


def fixed_environment(recipe: Recipe) -> dict[str, str]:
    """Give the variables that are the same on every machine.

    setuptools appends CPPFLAGS to the compiler's flags, where CFLAGS would take their place; nvcc
    appends its own variable, and hands what follows -Xcompiler to the host's compiler.
    """
    own = recipe.build.environment
    flags = {"CPPFLAGS": _PREFIX_MAP}
    if recipe.build.nvcc:
        flags["NVCC_APPEND_FLAGS"] = f"-Xcompiler={_PREFIX_MAP}"
    return FIXED | {name: f"{value} {own.get(name, '')}".strip() for name, value in flags.items()}


def procedure_of(recipe: Recipe) -> str:
    """Give the hash over the scripts, the fixed environment and the form of the finished file."""
    scripts = {name: hashlib.sha256((INSIDE / name).read_bytes()).hexdigest() for name in SCRIPTS}
    return digest_of(
        {
            "format": FORMAT,
            "scripts": scripts,
            "environment": fixed_environment(recipe),
            "writer of the bill of materials": metadata.version("cyclonedx-python-lib"),
        }
    )
