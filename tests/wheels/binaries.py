"""Tiny real binaries and wheels for tests, compiled here."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from dih20.wheels.recipes import DeviceCodePromise, Linking, Recipe, RecipeSource
from dih20.wheels.repack import repack


def shared_object(
    path: Path,
    source: str = "int answer(void) { return 42; }\n",
    *,
    flags: Sequence[str] = (),
    compiler: str = "gcc",
) -> Path:
    """Compile one C or C++ text into a shared object."""
    text = path.with_suffix(".c" if compiler == "gcc" else ".cc")
    path.parent.mkdir(parents=True, exist_ok=True)
    text.write_text(source)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(path), str(text), *flags], check=True)
    text.unlink()
    return path


def cuda_object(path: Path, code: Sequence[str]) -> Path:
    """Compile a kernel for the given -gencode values."""
    text = path.with_suffix(".cu")
    text.write_text("__global__ void fill(int* out) { *out = 1; }\n")
    gencode = [f"-gencode={value}" for value in code]
    command = ["nvcc", *gencode, "--shared", "-Xcompiler", "-fPIC", "-o", str(path), str(text)]
    subprocess.run(command, check=True)
    text.unlink()
    return path


def wheel_of(
    folder: Path,
    files: Mapping[str, Path | str],
    *,
    name: str = "vendor",
    version: str = "1.0",
    tag: str = "cp313-cp313-linux_x86_64",
    tag_inside: str | None = None,
) -> Path:
    """Write a wheel with these members and a matching WHEEL file (or a lying one)."""
    info = f"{name}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(draft, "w") as archive:
        for member, content in files.items():
            if isinstance(content, Path):
                archive.write(content, member)
            else:
                archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag_inside or tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    (folder / "final").mkdir(exist_ok=True)
    return repack(draft, folder / "final")


def recipe(
    *,
    device_code: DeviceCodePromise | None = None,
    linking: Linking | None = None,
    drop_in: str | None = None,
    optional: bool = False,
) -> Recipe:
    """Give a recipe of the vendor that wheel_of makes."""
    return Recipe(
        name="vendor",
        distribution="vendor",
        about="a vendor of the tests",
        source=RecipeSource(path="."),
        policy="real-or-drop-in" if drop_in else "build",
        drop_in=RecipeSource(path=drop_in) if drop_in else None,
        optional=optional,
        device_code=device_code or DeviceCodePromise(),
        linking=linking or Linking(),
    )
