"""A drop-in for DeepSelect on SM90 (H20, H200, H100), made of h20_ops; not DeepSeek's package.

Upstream builds for SM100 and is not published as an sdist. `IS_H20_DROP_IN` tells the two apart.
"""

from __future__ import annotations

from deep_select.interface import get_stride_requirement as get_stride_requirement
from deep_select.interface import topk as topk

__version__ = "0.0.0+h20.0.1.0"
IS_H20_DROP_IN = True
__all__ = ["IS_H20_DROP_IN", "__version__", "get_stride_requirement", "topk"]
