"""A target python: which wheels it can install, and what environment markers are true for it.

The target is that of the image, not the python that runs this tool.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from dih20.lock.files import Base

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True)
class Target:
    """One python on one C library.

    Example:
        Target("cp312", "2.39", "amd64").accepts("numpy-2.3.5-cp312-cp312-manylinux_2_28_x86_64.whl")
    """

    python_tag: str
    glibc: str
    architecture: str = "amd64"

    @classmethod
    def of(cls, base: Base) -> Target:
        return cls(base.python_tag, base.glibc, base.architecture)

    @property
    def python(self) -> tuple[int, int]:
        digits = self.python_tag.removeprefix("cp")
        return int(digits[0]), int(digits[1:])

    @property
    def python_version(self) -> str:
        return ".".join(map(str, self.python))

    @cached_property
    def _ranks(self) -> dict[Tag, int]:
        machine = _MACHINES[self.architecture]
        platforms = []
        for minor in range(int(self.glibc.split(".")[1]), 4, -1):
            platforms.append(f"manylinux_2_{minor}_{machine}")
            platforms += [f"{_LEGACY[minor]}_{machine}"] if minor in _LEGACY else []
        platforms.append(f"linux_{machine}")
        tags = [
            *cpython_tags(self.python, abis=[self.python_tag], platforms=platforms),
            *compatible_tags(self.python, interpreter=self.python_tag, platforms=platforms),
        ]
        return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}

    def rank(self, filename: str) -> int | None:
        """Give how well a wheel fits, 0 best; None when this python cannot install it."""
        try:
            tags = parse_wheel_filename(filename)[3]
        except InvalidWheelFilename:
            return None
        return min((self._ranks[tag] for tag in tags if tag in self._ranks), default=None)

    def accepts(self, filename: str) -> bool:
        return self.rank(filename) is not None

    def environment(self, extra: str = "") -> dict[str, str]:
        """Give the values of environment markers on this target."""
        return {
            "python_version": self.python_version,
            "python_full_version": f"{self.python_version}.0",
            "implementation_name": "cpython",
            "implementation_version": f"{self.python_version}.0",
            "platform_python_implementation": "CPython",
            "os_name": "posix",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "platform_machine": _MACHINES[self.architecture],
            "platform_release": "",
            "platform_version": "",
            "extra": extra,
        }

    def needs(self, requirement: Requirement, extras: frozenset[str] = frozenset()) -> bool:
        """Say whether a requirement's marker holds here, for a package taken with these extras."""
        if requirement.marker is None:
            return True
        return any(requirement.marker.evaluate(self.environment(extra)) for extra in {"", *extras})
