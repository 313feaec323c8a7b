"""What can be wrong with a checkpoint or a dump, in three parts.

V41Error
├── CheckpointError    a file, name, shape or dtype is not the released format
└── DumpError          two dumps cannot be compared, or one cannot be read
"""

from __future__ import annotations


class V41Error(Exception):
    """Carry what was found, what was expected and from where, and what to do next."""

    def __init__(self, found: str, expected: str, next_step: str) -> None:
        super().__init__(found, expected, next_step)
        self.found, self.expected, self.next_step = found, expected, next_step

    def __str__(self) -> str:
        return f"{self.found}\n  expected: {self.expected}\n  next:     {self.next_step}"


class CheckpointError(V41Error):
    """A checkpoint is not in the released format."""


class DumpError(V41Error):
    """A dump of named tensors is unreadable or not comparable."""
