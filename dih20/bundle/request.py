"""What `inv bundle` is asked for, checked before anything is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dih20.errors import UsageError
from dih20.paths import build_dir

WHEEL_LIST = "wheels.json"  # what `run.sh wheels export` leaves beside its wheels
GROUPS = ("site", "nccl", "headers", "build", "canary")
SMALLEST_PART = 64 << 10
_SIZE = re.compile(r"^(\d+)([KMG]?)$")
_SCALE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, kw_only=True)
class Request:
    """One bundle.

    Args:
        part_size: bytes of the largest part.
        without: names of packages of the lock, or of GROUPS, that the host brings itself.
        wheels: folder with vendor wheels built elsewhere with `wheels_torch`; None for none.
        thin_nccl: the one architecture whose device code stays in NCCL; empty for all of them.
        thin_site: packages without static libraries, compilers' sources and debug symbols.
    """

    part_size: int
    out: Path
    without: tuple[str, ...] = ()
    wheels: Path | None = None
    wheels_torch: str = ""
    thin_nccl: str = ""
    thin_site: bool = False
    level: int = 3

    @classmethod
    def of(
        cls,
        part_size: str = "40M",
        out: str = "",
        without: str = "",
        wheels: str = "",
        wheels_torch: str = "",
        *,
        thin_nccl: str = "",
        thin_site: bool = False,
        level: int = 3,
    ) -> Request:
        """Read the task's options; UsageError for what makes no sense."""
        listed = bool(wheels) and (Path(wheels).expanduser() / WHEEL_LIST).is_file()
        if bool(wheels) != bool(wheels_torch) and not listed:
            raise UsageError(
                found="--wheels and --wheels-torch: only one of the two",
                expected="both, since a wheel does not say which torch it was built with",
                remedy="add the other one",
            )
        if thin_nccl and not re.fullmatch(r"sm_\d+", thin_nccl):
            raise UsageError(
                found=f"--thin-nccl {thin_nccl}",
                expected="one architecture, such as sm_90",
                remedy="correct it, or leave it out: then NCCL is whole",
            )
        if not 0 <= level <= 9:
            raise UsageError(found=f"--level {level}", expected="0 to 9", remedy="correct --level")
        names = {name.strip().lower().replace("_", "-") for name in without.split(",")}
        return cls(
            part_size=size_of(part_size),
            out=Path(out).expanduser().resolve() if out else build_dir() / "bundle",
            without=tuple(sorted(names - {""})),
            wheels=Path(wheels).expanduser().resolve() if wheels else None,
            wheels_torch=wheels_torch,
            thin_nccl=thin_nccl,
            thin_site=thin_site,
            level=level,
        )

    def options(self) -> dict[str, Any]:
        """Give what decides the bundle's bytes, for the manifest."""
        return {
            "part_size": self.part_size,
            "without": list(self.without),
            "thin_nccl": self.thin_nccl,
            "thin_site": self.thin_site,
            "level": self.level,
        }


def size_of(text: str) -> int:
    """Read a size such as 40M: K, M and G count in 1024."""
    found = _SIZE.match(text.strip().upper())
    size = int(found[1]) * _SCALE[found[2]] if found else 0
    if size < SMALLEST_PART:
        raise UsageError(
            found=f"--part-size {text}",
            expected="a whole number, alone or with K, M or G, of 64K at least",
            remedy="correct --part-size",
        )
    return size
