"""In place of a module that DeepGEMM's tests import and its source distribution leaves out.

Only what its tests for this GPU need stands here; found after the tests' own folder.
"""

from __future__ import annotations

from deep_gemm.testing import (  # type: ignore[import-not-found, unused-ignore]
    get_arch_major as get_arch_major,
)
