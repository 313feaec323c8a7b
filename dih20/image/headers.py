"""What the header steps are told: required headers, header wheels with their CUDA release, nvcc's.

The verdict falls inside the image (dih20.image.inside.headers); what the lock alone can tell is
refused here, before any container runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from dih20.config.reading import Section, read_config
from dih20.errors import HeaderMismatch
from dih20.image.inside.headers import wrong_release
from dih20.lock import Lock, LockedFile
from dih20.paths import REPOSITORY, shown

TABLE = REPOSITORY / "images" / "di-h20" / "headers.yaml"


class RequiredHeader(Section):
    package: str
    place: Literal["overlay", "system", "toolkit"]


class HeaderTable(Section):
    """The file images/di-h20/headers.yaml."""

    required: dict[str, RequiredHeader]
    cuda_release_of: dict[str, dict[str, tuple[str, ...]]]

    def release_of(self, name: str, version: str) -> str | None:
        """Give the CUDA release that a library version belongs to; None for what has none (NCCL)."""
        if name.startswith("nvidia-cuda-"):
            return ".".join(version.split(".")[:2])
        for release, prefixes in self.cuda_release_of.get(name, {}).items():
            if any(f"{version}.".startswith(prefix) for prefix in prefixes):
                return release
        return None


def header_facts(lock: Lock, path: Path = TABLE) -> dict[str, Any]:
    """Give the facts file of the header steps; raise HeaderMismatch when the lock contradicts itself."""
    table = read_config(path, HeaderTable)
    nvcc = next(
        (wheel for wheel in lock.toolkit_wheels() if wheel.name == "nvidia-cuda-nvcc"), None
    )
    release = table.release_of(nvcc.name, nvcc.version) if nvcc else None
    wheels = {wheel.name: _wheel(table, wheel, path) for wheel in lock.header_wheels()}
    if release is not None and (faults := wrong_release(wheels, release)):
        raise HeaderMismatch(
            found="\n".join(faults),
            expected=f"header wheels of CUDA {release}, the release of the locked {nvcc}",
            remedy="correct wheels: in configs/images, then ./inv lock --only wheels",
        )
    return {
        "required": {name: entry.model_dump() for name, entry in table.required.items()},
        "wheels": wheels,
        "nvcc": release,
    }


def _wheel(table: HeaderTable, wheel: LockedFile, path: Path) -> dict[str, str]:
    release = table.release_of(wheel.name, wheel.version)
    if release is None:
        raise HeaderMismatch(
            found=f"{shown(path)} does not say which CUDA release {wheel} belongs to",
            expected=f"a prefix of {wheel.version} under cuda_release_of: {wheel.name}:",
            remedy="look it up in the requirements of the package cuda-toolkit, and add it",
        )
    return {"version": wheel.version, "cuda": release}
