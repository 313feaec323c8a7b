"""Which tests run, and what must be set up for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dih20.errors import UsageError

NEVER: Final = ("vendor", "gpu", "nvcc_full")  # marks that have a task or an option of their own
MARKS: Final = ("docker", "ssh", "nvcc", "torch")
LEAVES_OUT_TORCH: Final = "dih20.dev.without_torch"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Tests by their marks, names and paths. `marks`: one of them is enough; `without`: none of them."""

    vendor: bool = False
    only: str = ""
    paths: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """Give the package groups that they import."""
        return ("dev",) if "torch" in self.without else ("dev", "torch")

    def options(self) -> list[str]:
        """Give pytest's arguments."""
        given = ["-m", self.expression()]
        given += ["-k", self.only] if self.only else []
        given += ["-p", LEAVES_OUT_TORCH] if "torch" in self.without else []
        return [*given, *self.paths]

    def expression(self) -> str:
        """Give the expression over marks that selects these tests."""
        parts = ["vendor"] if self.vendor else [f"not {mark}" for mark in NEVER]
        if self.marks:
            any_of = " or ".join(self.marks)
            parts.append(f"({any_of})" if len(self.marks) > 1 else any_of)
        return " and ".join([*parts, *(f"not {mark}" for mark in self.without)])


def selection(*, vendor: bool, only: str, path: str, marks: str, without: str) -> Selection:
    """Read the options of `inv test`; UsageError for a mark that no test has."""
    return Selection(
        vendor=vendor,
        only=only,
        paths=tuple(_parts(path)),
        marks=_marks(marks, "--marks"),
        without=_marks(without, "--without"),
    )


def _marks(text: str, option: str) -> tuple[str, ...]:
    given = tuple(_parts(text))
    if unknown := [mark for mark in given if mark not in MARKS]:
        raise UsageError(
            found=f"{option}: no mark {', '.join(unknown)}",
            expected=f"some of: {', '.join(MARKS)}",
            remedy=f"correct {option}",
        )
    return given


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
