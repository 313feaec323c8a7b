"""Errors a caller of h20_ops can meet, each saying what was found, expected and to be done.

    H20OpsError
    ├── DeviceError         no CUDA device, or one that is not SM90
    ├── DependencyError     tilelang, nvcc or another optional piece is missing or too old
    ├── CompileError        a kernel did not compile, load or launch
    ├── FormatError         bytes or scales that no format of ours allows
    ├── LayoutError         a KV-cache layout that cannot be told, or is not the one expected
    ├── UnsupportedError    a combination that is defined but has no kernel here
    └── EvidenceError       recorded test evidence is missing, broken or stale

Wrong shapes, dtypes and strides are mistakes in the calling code: they are asserted, with values.
"""

from __future__ import annotations


class H20OpsError(Exception):
    """Base of every error raised on purpose by this package."""

    def __init__(self, found: str, expected: str, next_step: str) -> None:
        self.found = found
        self.expected = expected
        self.next_step = next_step
        super().__init__(f"found: {found}\nexpected: {expected}\nnext: {next_step}")


class DeviceError(H20OpsError):
    """No CUDA device is usable here, or it is not SM90."""


class DependencyError(H20OpsError):
    """An optional dependency is missing or unusable."""


class CompileError(H20OpsError):
    """A kernel could not be compiled, loaded or launched."""


class FormatError(H20OpsError):
    """Bytes or scales are outside what the number format allows."""


class LayoutError(H20OpsError):
    """A KV-cache layout could not be identified or is not the expected one."""


class UnsupportedError(H20OpsError):
    """The arguments are valid, but no kernel of this package serves them."""


class EvidenceError(H20OpsError):
    """Recorded test evidence is missing, malformed or older than the sources."""
