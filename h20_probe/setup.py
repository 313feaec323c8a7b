"""Compile csrc/probe.cu with nvcc into the package, and tag the wheel for every Python 3."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
SOURCE = Path("csrc/probe.cu")
LIBRARY = Path("h20_probe/libh20_probe.so")
ARCHITECTURE = "90a"


def find_nvcc() -> Path:
    """Give nvcc: CUDA_HOME, CUDA_PATH, the PATH, then the usual place."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    named = [Path(home, "bin", "nvcc") for home in homes[:2] if home]
    on_path = [Path(found)] if (found := shutil.which("nvcc")) else []
    for candidate in [*named, *on_path, Path("/usr/local/cuda/bin/nvcc")]:
        if candidate.is_file():
            return candidate
    sys.exit(
        "h20_probe: no nvcc found\n"
        "  expected: nvcc >= 12.9 at $CUDA_HOME/bin, on the PATH or at /usr/local/cuda/bin\n"
        "  next:     set CUDA_HOME to the CUDA toolkit, then build again"
    )


def nvcc_command(nvcc: Path, output: Path) -> list[str]:
    """Give the one compile-and-link command.

    The CUDA runtime is linked in and the C++ library is not used, so that the host's own versions do not
    matter; nothing is linked from libcuda: the CUDA runtime loads the driver's library by name.
    """
    code = f"-gencode=arch=compute_{ARCHITECTURE},code=sm_{ARCHITECTURE}"
    host = "-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-ffile-prefix-map=.=h20_probe"
    runtime = "-static-libgcc,-s"
    link = "--as-needed,--exclude-libs=ALL,-z,noexecstack"
    return [
        str(nvcc), "-std=c++17", "-O2", code, "-Werror=all-warnings", "-Xcompiler", host,
        "--shared", "-cudart", "static", "-Xcompiler", runtime, "-Xlinker", link, "-o", str(output), str(SOURCE),
    ]  # fmt: skip


class BuildWithLibrary(build_py):
    """Build the Python files, then the library beside them."""

    def run(self) -> None:
        super().run()
        output = Path(self.build_lib).resolve() / LIBRARY
        output.parent.mkdir(parents=True, exist_ok=True)
        command = nvcc_command(find_nvcc(), output)
        print("running:", " ".join(command), flush=True)
        code = subprocess.run(command, cwd=HERE, check=False).returncode
        if code != 0:
            sys.exit(f"h20_probe: nvcc ended with {code}; its messages are above")


class AnyPython3(bdist_wheel):
    """Tag py3-none-<platform>: machine code for the platform, no Python ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": AnyPython3},
    distclass=PlatformDistribution,
)
