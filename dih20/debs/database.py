"""What a dpkg status file, or a package's own control file, says of a package."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

INSTALLED: Final = "install ok installed"
_FIELD: Final = re.compile(r"^([A-Za-z0-9-]+):[ \t]*(.*(?:\n[ \t].*)*)", flags=re.M)


@dataclass(frozen=True, kw_only=True)
class Package:
    """One package. `status` is dpkg's, empty for a package that is not installed yet."""

    name: str
    version: str
    architecture: str
    status: str = ""
    depends: str = ""
    conflicts: str = ""
    provides: str = ""

    @property
    def is_installed(self) -> bool:
        return self.status.endswith(" installed")

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def parse_package(paragraph: str) -> Package | None:
    """Give the package of one paragraph; None where it names none."""
    fields = {name.lower(): " ".join(text.split()) for name, text in _FIELD.findall(paragraph)}
    if "package" not in fields or "version" not in fields:
        return None
    joined = {
        key: ", ".join(fields[name] for name in names if fields.get(name))
        for key, names in (
            ("depends", ("pre-depends", "depends")),
            ("conflicts", ("conflicts", "breaks")),
        )
    }
    return Package(
        name=fields["package"],
        version=fields["version"],
        architecture=fields.get("architecture", ""),
        status=fields.get("status", ""),
        provides=fields.get("provides", ""),
        **joined,
    )


def parse_status(text: str) -> dict[tuple[str, str], Package]:
    """Give every package of a status file by name and architecture, removed ones included."""
    packages = (parse_package(paragraph) for paragraph in re.split(r"\n\s*\n", text))
    return {(p.name, p.architecture): p for p in packages if p is not None}
