"""The top-k kernel's source as host code: build it for a form, and call it as the wrapper does."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import torch

from h20_ops.cuda import topk_kernel as kernel
from h20_ops.jit import find_nvcc
from h20_ops.testing.topk_cases import TopkCase, make_ends

Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def build(folder: Path, kernels: Path, form: kernel.Form, dtype: torch.dtype) -> ctypes.CDLL:
    """Compile topk.cu of `kernels` with the host compiler, one fibre for each thread."""
    nvcc = find_nvcc()
    assert nvcc is not None, "the mark nvcc promises one"
    library = folder / f"topk-{dtype}-{form.threads}-{form.candidates}.so"
    defines = kernel.source(form, is_bf16=dtype == torch.bfloat16).defines
    command = [str(nvcc), "-x", "c++", "-O1", "-std=c++17", "-shared", "-cudart", "none"]
    command += [f"-D{name}={value}" for name, value in defines.items()]
    command += ["-Xcompiler", "-fPIC,-w", f"-I{kernels}", "-o", str(library)]
    command += [str(Path(__file__).with_name("host_topk.cpp"))]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.run.argtypes = [ctypes.POINTER(kernel.Params), ctypes.c_int, ctypes.c_uint32]
    return loaded


def run(
    library: ctypes.CDLL,
    case: TopkCase,
    rows: torch.Tensor,
    *,
    blocks: int,
    seed: int = 0,
) -> Result:
    """Values, indices (int32, offset by 1000 times the row) and NaN flags of a case on the CPU."""
    ends = make_ends(case)
    offset = torch.arange(case.rows, dtype=torch.int32) * 1000
    values = torch.full((case.rows, case.k), 9.0, dtype=case.dtype)
    indices = torch.full((case.rows, case.k), -9, dtype=torch.int32)
    flags = torch.full((case.rows,), 9, dtype=torch.uint8)
    is_bf16 = case.dtype == torch.bfloat16
    params = kernel.Params(
        input=rows.data_ptr(),
        end=None if ends is None else ends.data_ptr(),
        offset=offset.data_ptr(),
        values=values.data_ptr(),
        indices=indices.data_ptr(),
        nan_rows=flags.data_ptr(),
        row_stride=rows.stride(0),
        index_stride=case.k,
        index_fill=-1,
        value_fill=kernel.value_bits(-torch.inf, is_bf16=is_bf16),
        columns=case.columns,
        k=case.k,
        blocks=blocks,
        column_bits=kernel.column_bits(case.columns),
        wide=0,
        sorted=case.sorted,
    )
    library.run(ctypes.byref(params), case.rows, seed)
    return values, indices, flags
