"""Compile kernels once, keep them in a cache folder, load and launch them without a C++ extension.

    source = CudaSource("sparse_mla_decode", Path("h20_ops/cuda/sparse_mla_decode.cu"), {"HEADS": 64})
    artefact = compile_cuda(source)                      # nvcc, or the copy in the cache
    kernel = load_kernel(source, "decode_kernel", shared_bytes=200 * 1024)
    kernel.launch(grid=(132,), block=(384,), args=[pointer(q), ctypes.c_int(s_q)])

The folder is `H20_OPS_CACHE_DIR` (default: `~/.cache/h20_ops`). `export_artefacts` packs what a host
without nvcc needs, `import_artefacts` unpacks it there.
"""

from __future__ import annotations

from h20_ops.jit.cache import (
    Artefact,
    cache_dir,
    export_artefacts,
    get_or_build,
    import_artefacts,
)
from h20_ops.jit.driver import Kernel, load_kernel, pointer
from h20_ops.jit.nvcc import CudaSource, PtxasReport, compile_cuda, find_nvcc, ptxas_reports

__all__ = [
    "Artefact",
    "CudaSource",
    "Kernel",
    "PtxasReport",
    "cache_dir",
    "compile_cuda",
    "export_artefacts",
    "find_nvcc",
    "get_or_build",
    "import_artefacts",
    "load_kernel",
    "pointer",
    "ptxas_reports",
]
