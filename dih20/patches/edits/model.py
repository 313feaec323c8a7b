"""edit.yaml: what an edit changes, where, why, and by what it knows that upstream is what it was made for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dih20.config.reading import Section, read_config
from dih20.errors import ConfigError, PatchMalformed
from dih20.patches.edits.blocks import KEPT

Action = Literal[
    "insert-branch",
    "replace-function",
    "wrap-return",
    "wrap-assignment",
    "set-keyword",
    "replace-import",
    "add-after",
]
_NEEDS: dict[str, tuple[str, ...]] = {
    "insert-branch": ("symbol", "fingerprint", "code"),
    "replace-function": ("symbol", "fingerprint", "code"),
    "wrap-return": ("symbol", "fingerprint", "expression"),
    "wrap-assignment": ("symbol", "fingerprint", "target", "expression"),
    "set-keyword": ("symbol", "fingerprint", "callee", "keyword", "expression"),
    "replace-import": ("imported", "code"),
    "add-after": ("symbol", "fingerprint", "code"),
}
_OPTIONAL = {"file", "action", "sites"}
Fingerprint = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class Change(Section):
    """One place that an edit changes. docs/patches.md is the manual of these keys."""

    file: str
    action: Action
    symbol: str = ""
    fingerprint: Fingerprint | None = None
    code: str = ""
    expression: str = ""
    target: str = ""
    callee: str = ""
    keyword: str = ""
    imported: str = Field(default="", alias="import")
    sites: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _has_what_its_action_needs(self) -> Change:
        needs = _NEEDS[self.action]
        given = {name for name in type(self).model_fields if name in self.model_fields_set}
        missing = [name for name in needs if not getattr(self, name)]
        extra = sorted(given - set(needs) - _OPTIONAL)
        if missing or extra:
            raise ValueError(
                f"{self.action} needs {', '.join(_shown(n) for n in needs)}"
                + (f"; missing: {', '.join(map(_shown, missing))}" if missing else "")
                + (f"; not for it: {', '.join(map(_shown, extra))}" if extra else "")
            )
        return self

    @property
    def place(self) -> str:
        """Give the place as reports name it."""
        return f"{self.file}: {self.symbol or 'import ' + self.imported}"


class UpstreamHas(Section):
    """A symbol by which one sees that upstream does by itself what the edit is for."""

    file: str
    symbol: str


class Edit(Section):
    """A folder below patches/sm90: edit.yaml and our own code files."""

    id: Annotated[str, Field(pattern=r"^[A-Z][0-9]{2}-[a-z0-9-]+$")]
    title: str
    reason: str
    upstream: str
    removable_when: str = Field(alias="removable-when")
    verified_by: list[str] = Field(alias="verified-by", min_length=1)
    test_only: bool = Field(default=False, alias="test-only")
    upstream_has: list[UpstreamHas] = Field(default_factory=list, alias="upstream-has")
    changes: list[Change] = Field(min_length=1)

    @property
    def trailers(self) -> dict[str, str]:
        return {
            "Reason": self.reason,
            "Upstream": self.upstream,
            "Removable-when": self.removable_when,
        }


def read_edit(folder: Path) -> Edit:
    """Read a folder's edit.yaml; PatchMalformed names file, line and key."""
    try:
        edit = read_config(folder / "edit.yaml", Edit)
    except ConfigError as error:
        raise PatchMalformed(
            found=error.found, expected=error.expected, remedy=error.remedy
        ) from error
    if edit.id != folder.name:
        raise _malformed(folder, f"id is {edit.id}", f"the folder's name, {folder.name}")
    used = {change.code for change in edit.changes if change.code}
    there = {path.name for path in folder.glob("*.py")}
    if missing := sorted(used - there):
        raise _malformed(folder, f"code file {missing[0]} is not there", "every code: beside it")
    if unused := sorted(there - used):
        raise _malformed(folder, f"no change uses {unused[0]}", "only files that a code: names")
    for name in sorted(used):
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
        if any(line.strip().startswith((KEPT, "# >>> dih20", "# <<< dih20")) for line in lines):
            raise _malformed(folder, f"{name} has a line like a block's own", f"no {KEPT} comments")
    return edit


def _shown(name: str) -> str:
    return "import" if name == "imported" else name


def _malformed(folder: Path, found: str, expected: str) -> PatchMalformed:
    return PatchMalformed(
        found=f"{folder.name}/edit.yaml: {found}",
        expected=expected,
        remedy="correct the edit; docs/patches.md has the format",
    )
