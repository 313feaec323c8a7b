"""Small inputs for image tests: wheels of a few kilobytes, a lock that names them, steps of a few lines."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dih20.config import load_image
from dih20.image.steps import Step, load_steps
from dih20.lock import Lock, LockedFile
from dih20.lock.model import Wheels

NCCL = "2.32.3"
OLDER_NCCL = "2.28.9"

WheelMaker = Callable[..., LockedFile]
StepMaker = Callable[..., Step]

_LIBNCCL = "int ncclGetVersion(int *number) { *number = %d; return 0; }\n"
_FAKE_TORCH = """
import ctypes, pathlib
from torch import version
__version__ = "2.13.0+cu130"
site = pathlib.Path(__file__).resolve().parent
for place in (site / "lib", site.parent / "nvidia" / "nccl" / "lib"):
    if (place / "libnccl.so.2").exists():
        ctypes.CDLL(str(place / "libnccl.so.2"))
        break
"""


class SmallWheels:
    """Make wheels in a folder and find them again: it stands where the download cache stands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, name: str, version: str, files: Mapping[str, str | bytes | Path]) -> LockedFile:
        stem = f"{name.replace('-', '_')}-{version}"
        info = f"{stem}.dist-info"
        contents = {path: _bytes(content) for path, content in files.items()}
        contents[f"{info}/METADATA"] = (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
        )
        contents[f"{info}/WHEEL"] = (
            b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        rows = [f"{path},{_record_hash(data)},{len(data)}" for path, data in contents.items()]
        contents[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
        filename = f"{stem}-py3-none-any.whl"
        path = self.folder / filename
        with zipfile.ZipFile(path, "w") as wheel:
            for member, data in contents.items():
                wheel.writestr(zipfile.ZipInfo(member), data)
        data = path.read_bytes()
        return LockedFile(
            name=name,
            version=version,
            filename=filename,
            sha256=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data),
            kind="wheel",
        )

    def nccl(self, version: str, name: str = "nvidia-nccl-cu13") -> LockedFile:
        """Make an NCCL with header and library, of the version that both report."""
        return self.make(
            name,
            version,
            {
                "nvidia/nccl/include/nccl.h": nccl_header(version),
                "nvidia/nccl/lib/libnccl.so.2": self.libnccl(version),
            },
        )

    def torch(self, *, own_nccl: str | None = None) -> LockedFile:
        """Make a package that loads an NCCL when it is imported, as torch does; its own one if asked."""
        files: dict[str, str | bytes | Path] = {
            "torch/__init__.py": _FAKE_TORCH,
            "torch/version.py": 'cuda = "13.0"\n',
        }
        if own_nccl:
            files["torch/lib/libnccl.so.2"] = self.libnccl(own_nccl)
        return self.make("torch", "2.13.0", files)

    def libnccl(self, version: str) -> Path:
        major, minor, patch = (int(part) for part in version.split("."))
        source = self.folder / f"nccl-{version}.c"
        source.write_text(_LIBNCCL % (major * 10000 + minor * 100 + patch))
        library = self.folder / f"libnccl-{version}.so"
        command = [
            "cc",
            "-shared",
            "-fPIC",
            "-Wl,-soname,libnccl.so.2",
            "-o",
            str(library),
            str(source),
        ]
        subprocess.run(command, check=True, capture_output=True)
        return library

    def headers(self) -> list[LockedFile]:
        """Make the four header wheels, each header being one line."""
        listed = {
            ("nvidia-cublas", "13.1.1.3"): ("cublas_v2.h", "cublasLt.h"),
            ("nvidia-curand", "10.4.0.35"): ("curand.h", "curand_kernel.h"),
            ("nvidia-cusolver", "12.0.4.66"): ("cusolverDn.h",),
            ("nvidia-cusparse", "12.6.3.3"): ("cusparse.h",),
        }
        return [
            self.make(name, version, {f"nvidia/cu13/include/{h}": f"/* {h} */\n" for h in names})
            for (name, version), names in listed.items()
        ]

    def find(self, file: LockedFile) -> Path:
        return self.folder / file.filename


def nccl_header(version: str) -> str:
    names = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    return "".join(f"#define NCCL_{name} {number}\n" for name, number in names)


def _bytes(content: str | bytes | Path) -> bytes:
    if isinstance(content, Path):
        return content.read_bytes()
    return content.encode() if isinstance(content, str) else content


def _record_hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallWheels:
    """A maker of small wheels; image steps take them from its folder, all else from the cache."""
    from dih20.fetch import cached

    folder = tmp_path / "wheels"
    folder.mkdir()
    maker = SmallWheels(folder)

    def find(file: LockedFile) -> Path:
        return maker.find(file) if maker.find(file).exists() else cached(file)

    monkeypatch.setattr("dih20.image.inputs.cached", find)
    return maker


@pytest.fixture
def small_lock(wheels: SmallWheels) -> Lock:
    """The project's lock with small wheels in place of the gigabytes."""
    lock = Lock.load()
    return with_wheels(
        lock,
        wheels,
        nccl=wheels.nccl(NCCL),
        requirements=[wheels.make("einops", "0.8", {"einops.py": ""})],
    )


def with_wheels(
    lock: Lock, wheels: SmallWheels, *, nccl: LockedFile, requirements: list[LockedFile]
) -> Lock:
    small = Wheels(
        headers=tuple(wheels.headers()),
        toolkit=lock.wheels.toolkit,
        nccl=(nccl,),
    )
    python = {tag: tuple(requirements) for tag in ("cp312", "cp313")}
    return lock.model_copy(update={"wheels": small, "python": python})


@pytest.fixture
def stand_in_config() -> Any:
    return load_image("di-h20").model_copy(update={"base": "stand-in"})


@pytest.fixture
def make_step(tmp_path: Path) -> StepMaker:
    """Give a maker of steps from a few lines of shell."""

    def make(name: str, script: str, **others: Any) -> Step:
        path = tmp_path / f"{name}.sh"
        path.write_text(script)
        return Step(
            name=name,
            script=path,
            inputs=others.get("inputs", ()),
            uses=others.get("uses", ()),
            env=others.get("env", {}),
        )

    return make


@pytest.fixture
def real_steps() -> dict[str, Step]:
    """The steps of images/di-h20 by name."""
    return {step.name: step for step in load_steps()}


@pytest.fixture(autouse=True)
def own_build_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Logs of a test go to its own folder."""
    monkeypatch.setenv("DI_BUILD", str(tmp_path / "build"))
    return tmp_path / "build"


needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
