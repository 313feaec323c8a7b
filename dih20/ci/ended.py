"""How the commands of a job ended, here or in the image."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The exit code of the first command that failed, else 0; is_overdue says that the job's time was up."""

    exit_code: int
    is_overdue: bool = False

    @property
    def is_good(self) -> bool:
        return self.exit_code == 0 and not self.is_overdue
