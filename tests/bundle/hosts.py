"""A small real bundle, and a host for it: a folder with a torch that does what torch's import does to NCCL."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dih20.bundle.entries import Entry, in_order, of_bytes, of_file, of_wheel
from dih20.bundle.parts import BlockCompressor, Splitter, write_archive
from dih20.bundle.tools import copy_tools
from tests.wheels.binaries import shared_object

TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
NCCL = "2.32.3"
_NCCL_SOURCE = "int ncclGetVersion(int *v) { *v = %d; return 0; }\n"
_TORCH = """
import ctypes, os, sys
from pathlib import Path

__version__ = os.environ.get("FAKE_TORCH", "2.11.0+cu130")


class version:
    cuda = os.environ.get("FAKE_TORCH_CUDA", "13.0") or None


class cuda:
    device_count = staticmethod(lambda: int(os.environ.get("FAKE_GPUS", "0")))
    get_device_name = staticmethod(lambda index: "NVIDIA H200")
    get_device_capability = staticmethod(lambda index: (9, 0))


for place in sys.path:  # as torch 2.11 does it
    library = Path(place, "nvidia", "nccl", "lib", "libnccl.so.2")
    if library.is_file():
        ctypes.CDLL(str(library))
        break
if os.environ.get("FAKE_TORCH_MAPS_ITS_OWN"):
    ctypes.CDLL(str(Path(__file__).parent.parent / "nvidia/nccl/lib/libnccl.so.2"))
"""
_INFOS = (
    ("site", "tilelang-0.1.15"),
    ("site", "apache_tvm_ffi-0.1.12"),
    ("site", "tile_kernels-2.1.0"),
    ("site-nccl", f"nvidia_nccl_cu13-{NCCL}"),
)
_SETUP = """
import os

from setuptools import setup

if os.environ.get("FAKE_BROKEN_BUILD"):
    raise SystemExit("csrc/api.cpp:7: error: no such thing")
setup(name="%s", version="1.0", packages=["%s"])
"""


def nccl_library(path: Path, version: str) -> Path:
    major, minor, patch = map(int, version.split("."))
    return shared_object(path, _NCCL_SOURCE % (major * 10000 + minor * 100 + patch))


def _metadata(info: str) -> bytes:
    name, _, version = info.partition("-")
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()


def vendor_wheel(path: Path, name: str) -> Path:
    """Write a wheel with an extension that nothing imports."""
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", "unpatched = True\n")
        wheel.writestr(f"{name}/_C.{TAG}.so", "machine code")
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\n")
    return path


@dataclass
class SmallBundle:
    """A bundle made by the real writers out of a handful of files.

    Args:
        wheels: packages that come with a wheel for torch 2.11; the others are built on the host.
    """

    folder: Path
    scratch: Path
    part_size: int = 100_000
    wheels: Sequence[str] = ("deep_gemm", "deep_ep", "deepinfer")
    note: str = ""
    manifest: dict[str, Any] = field(default_factory=dict)

    def write(self) -> SmallBundle:
        self.folder.mkdir(parents=True)
        self.scratch.mkdir(parents=True, exist_ok=True)
        splitter = Splitter(self.folder, self.part_size)
        compressor = BlockCompressor(splitter.write, 1)
        entries = in_order(self._entries())
        groups = write_archive(entries, compressor, lambda _: None)
        compressor.close()
        whole = splitter.close()
        size = sum(entry.size for entry in entries)
        self.manifest = {
            **self._facts(), "identity": whole["sha256"], "whole": whole, "parts": splitter.parts,
            "groups": groups, "unpacked_bytes": size, "tools": copy_tools(self.folder),
        }  # fmt: skip
        (self.folder / "manifest.json").write_text(json.dumps(self.manifest))
        return self

    def _facts(self) -> dict[str, Any]:
        names = ("deep_gemm", "deep_ep", "deepinfer")
        build = {"environment": {"NOTE": "{nccl}"}, "memory_per_job_gb": 1, "timeout_minutes": 5}
        patched = {name: {"version": "1.0", "identity": name * 2, "patches": []} for name in names}
        return {
            "format": 1, "options": {"thin_nccl": ""}, "commit": "c" * 40, "lock": "l" * 64, "sources": {"tree": "t"},
            "target": {"python_tag": TAG, "glibc": "2.17", "torch_at_least": "2.11", "cuda": "13.0"},
            "files": [{"name": "tilelang", "version": "0.1.15", "filename": "t.whl", "sha256": "0" * 64}],
            "patched": patched,
            "builds": [{"name": n, "distribution": n, **build} for n in names],
            "vendor_wheels": [
                {"name": n, "folder": f"vendor/{n}", "sha256": "0" * 64, "torch": "2.11.0+cu130", "glibc": "2.17", "origin": "given"}
                for n in self.wheels
            ],
            "nccl": {"version": NCCL, "whole_sha256": self._nccl_hash(), "thinned": None},
        }  # fmt: skip

    def _nccl_hash(self) -> str:
        import hashlib

        return hashlib.sha256(self._library().read_bytes()).hexdigest()

    def _library(self) -> Path:
        path = self.scratch / "libnccl.so.2"
        return path if path.exists() else nccl_library(path, NCCL)

    def _entries(self) -> list[Entry]:
        noise = b"".join(os.urandom(1000) for _ in range(300)) if not self.note else b"1" * 300_000
        check = "import json, os, sys\nprint('CHECKED', json.dumps(sys.argv[1:]), os.environ['PYTHONPATH'])\n"
        entries = [
            of_bytes("site/tilelang/__init__.py", f"note = {self.note!r}\n".encode()),
            of_bytes("site/noise.bin", noise),
            *(
                of_bytes(f"{place}/{name}.dist-info/METADATA", _metadata(name))
                for place, name in _INFOS
            ),
            of_bytes("own/dih20/__init__.py", b""),
            of_bytes("own/dih20/engine_check/__init__.py", b""),
            of_bytes("own/dih20/engine_check/__main__.py", check.encode()),
            of_file("site-nccl/nvidia/nccl/lib/libnccl.so.2", self._library()),
            of_bytes("headers/include/zstd.h", b"/* header */\n"),
            of_bytes("site-build/tool.py", b""),
            of_bytes("sources/deepinfer/deep_cluster/__init__.py", b""),
        ]
        for name in ("deep_gemm", "deep_ep", "deepinfer"):
            entries.append(of_bytes(f"sources/{name}/{name}/__init__.py", b"patched = True\n"))
            entries.append(of_bytes(f"sources/{name}/setup.py", (_SETUP % (name, name)).encode()))
        for name in self.wheels:
            wheel = vendor_wheel(self.scratch / f"{name}.whl", name)
            entries += of_wheel(f"vendor/{name}", wheel)
        return entries


@dataclass(frozen=True)
class Host:
    """A Python that finds our torch, and programs that answer like nvcc and g++."""

    root: Path

    def make(self) -> Host:
        (self.root / "site" / "torch").mkdir(parents=True)
        (self.root / "site" / "torch" / "__init__.py").write_text(_TORCH)
        nccl_library(self.root / "site/nvidia/nccl/lib/libnccl.so.2", "2.28.9")
        self.program("bin/nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
        self.program("bin/g++", "echo 14.2.0")
        return self

    def program(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, bundle: SmallBundle | Path, *words: str, **environment: str) -> Answer:
        folder = bundle if isinstance(bundle, Path) else bundle.folder
        whole = {
            **os.environ,
            "PYTHON": str(self.python()),
            "CUDA_HOME": str(self.root),
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "CXX": "g++",
            **environment,
        }
        for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH"):
            whole.pop(name, None)
        done = subprocess.run(
            ["sh", str(folder / "run.sh"), *words], env=whole, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        return Answer(code=done.returncode, out=done.stdout, err=done.stderr)

    def python(self) -> Path:
        """Give an environment of its own whose site-packages holds the torch; made once."""
        place = self.root / "venv"
        if not place.exists():
            subprocess.run(
                [sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=120
            )
            site = sysconfig.get_path("purelib", vars={"base": str(place)})
            setuptools = importlib.util.find_spec("setuptools")
            assert setuptools is not None and setuptools.origin is not None
            ours = Path(setuptools.origin).parent.parent
            # its own torch first, then what builds need: the test's own packages
            Path(site, "host.pth").write_text(f"{self.root / 'site'}\n{ours}\n")
        return place / "bin" / "python"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a run of run.sh gave."""

    code: int
    out: str
    err: str
