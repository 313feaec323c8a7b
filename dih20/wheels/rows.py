"""What became of each recipe: one row a recipe, and the table at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from dih20.console import Console
from dih20.errors import ToolError
from dih20.wheels.recipes import Recipe
from dih20.wheels.store import StoredWheel

Status = Literal["hit", "built", "skipped", "unusable", "failed"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of one recipe."""

    recipe: Recipe
    status: Status
    note: str
    wheel: StoredWheel | None = None
    seconds: float = 0.0
    error: ToolError | None = None

    def as_dict(self) -> dict[str, Any]:
        wheel = self.wheel
        return {
            "name": self.recipe.name,
            "status": self.status,
            "note": self.note,
            "seconds": round(self.seconds, 1),
            "wheel": wheel and {k: v for k, v in wheel.record().items() if k != "parts"},
            **({"error": self.error.as_dict()} if self.error else {}),
        }


def show_table(ui: Console, rows: Iterable[Row]) -> None:
    """Print a line per recipe: name, version, what happened and why, size, seconds, sha256."""
    cells = []
    for row in rows:
        wheel = row.wheel
        cells.append(
            [
                row.recipe.name,
                wheel.version if wheel else "-",
                row.status,
                row.note,
                f"{wheel.size_bytes / 1e6:.1f} MB" if wheel else "-",
                f"{row.seconds:.1f}",
                wheel.sha256[:12] if wheel else "-",
            ]
        )
    ui.table(["wheel", "version", "status", "why", "size", "s", "sha256"], cells)
