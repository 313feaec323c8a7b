"""A drop-in for FlashMLA on SM90 (H20, H200, H100), made of h20_ops; not DeepSeek's package.

It offers the names and signatures of FlashMLA's 2026-09-30 interface, which upstream serves on
SM100 only. Installed beside the real one it would overwrite it file by file: `./inv doctor` refuses
that. `IS_H20_DROP_IN` tells the two apart.
"""

from __future__ import annotations

from flash_mla.flash_mla_interface import flash_mla_sparse_fwd as flash_mla_sparse_fwd
from flash_mla.flash_mla_interface import flash_mla_with_kvcache as flash_mla_with_kvcache
from flash_mla.flash_mla_interface import get_mla_metadata as get_mla_metadata

__version__ = "1.0.0+h20.0.1.0"
IS_H20_DROP_IN = True
__all__ = [
    "IS_H20_DROP_IN",
    "__version__",
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "get_mla_metadata",
]
