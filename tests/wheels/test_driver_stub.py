"""F05: link against a stand-in for libcuda, need the real one, and never find a stub at run time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dih20.errors import WheelError
from dih20.wheels import elf
from dih20.wheels.driver_stub import function_names, refuse_stub_folders, stub_folders, stub_source
from tests.wheels.binaries import shared_object

CUDA_H = """
#define cuMemAlloc                          cuMemAlloc_v2
    #define cuLaunchKernel                  __CUDA_API_PTSZ(cuLaunchKernel)
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
"""


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    return shared_object(
        tmp_path / "stubs" / "libcuda.so",
        stub_source(CUDA_H),
        flags=["-w", "-Wl,-soname,libcuda.so.1"],
    )


def test_every_name_that_compiled_code_may_refer_to_is_in_the_stub(stub: Path) -> None:
    assert {
        "cuInit",
        "cuMemAlloc",
        "cuMemAlloc_v2",
        "cuLaunchKernel",
        "cuLaunchKernel_ptsz",
    } <= set(function_names(CUDA_H))
    found = elf.read(stub)
    assert found.soname == "libcuda.so.1"
    assert {"cuInit", "cuMemAlloc_v2"} <= found.defined


@pytest.mark.parametrize("as_needed", ["-Wl,--as-needed", "-Wl,--no-as-needed"])
def test_an_extension_linked_with_it_needs_the_drivers_own_name_and_no_search_path(
    tmp_path: Path, stub: Path, as_needed: str
) -> None:
    source = "int cuInit(unsigned);\nint start(void) { return cuInit(0); }\n"
    flags = [as_needed, f"-L{stub.parent}", "-lcuda", "-Wl,-z,defs"]
    built = elf.read(shared_object(tmp_path / "extension.so", source, flags=flags))
    assert "libcuda.so.1" in built.needed
    assert built.search_paths == ()


def test_the_stubs_file_name_is_not_what_a_program_looks_for_at_run_time(
    tmp_path: Path, stub: Path
) -> None:
    code = "import ctypes; ctypes.CDLL('libcuda.so.1')"
    env = {"LD_LIBRARY_PATH": str(stub.parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["python3", "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "libcuda.so.1" in done.stderr


def test_a_stubs_folder_in_the_run_time_environment_is_an_error() -> None:
    environment = {"LD_LIBRARY_PATH": "/usr/lib:/usr/local/cuda/lib64/stubs"}
    assert stub_folders(environment) == ["/usr/local/cuda/lib64/stubs"]
    with pytest.raises(WheelError) as caught:
        refuse_stub_folders(environment, "image di-h20:1")
    assert "/usr/local/cuda/lib64/stubs" in caught.value.found
    refuse_stub_folders({"LD_LIBRARY_PATH": "/usr/local/stubsidiary/lib"}, "image di-h20:1")


def test_a_header_without_functions_is_an_error_and_not_an_empty_stub() -> None:
    with pytest.raises(WheelError, match="declares no"):
        stub_source("/* nothing */")
