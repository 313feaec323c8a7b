"""Small vendors for the container tests: a setup.py, some sources, and a recipe for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dih20.wheels.recipes import Build, DeviceCodePromise, Linking, Recipe, RecipeSource

_SETUP = """
import os, subprocess, sys
from pathlib import Path
from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

class Build(build_py):
    def run(self):
        super().run()
        out = Path(self.build_lib, "vendor").resolve()
        out.mkdir(parents=True, exist_ok=True)
        code = subprocess.run(["ninja", "-v", "-j", os.environ["MAX_JOBS"]], env={**os.environ, "OUT": str(out)}).returncode
        if code:
            sys.exit("error: ninja stopped")

class HasMachineCode(Distribution):
    def has_ext_modules(self):
        return True

setup(name="vendor", version="1.0", packages=["vendor"], cmdclass={"build_py": Build}, distclass=HasMachineCode)
"""

_KERNEL = "__global__ void kernel(int* out) { *out = 1; }\n"


def ninja_vendor(
    folder: Path, *, compile_command: str, files: int = 1, suffix: str = "cu", link: str = ""
) -> Path:
    """Write a vendor that compiles its files with a command and links them into vendor/_C.so."""
    (folder / "vendor").mkdir(parents=True)
    (folder / "vendor" / "__init__.py").write_text("")
    (folder / "setup.py").write_text(_SETUP)
    names = [f"part{i}" for i in range(1, files + 1)]
    for name in names:
        text = (
            _KERNEL.replace("kernel", name)
            if suffix == "cu"
            else f"int {name}(void) {{ return 1; }}\n"
        )
        (folder / f"{name}.{suffix}").write_text(text)
    rules = [f"rule compile\n  command = {compile_command} -c $in -o $out\n"]
    rules.append(f"rule link\n  command = g++ -shared $in -o $$OUT/_C.so {link} && touch $out\n")
    rules += [f"build {name}.o: compile {name}.{suffix}\n" for name in names]
    rules.append(f"build linked: link {' '.join(f'{name}.o' for name in names)}\n")
    (folder / "build.ninja").write_text("".join(rules))
    return folder


def dying_compiler(folder: Path, signal: str, *, on: str, unless: str = "false") -> str:
    """Write a compiler that ends itself by a signal on one file; give the command that calls it."""
    script = folder / "compiler.sh"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *{on}*) if ! {unless}; then kill -{signal} $$; fi ;; esac\nexec gcc -fPIC "$@"\n'
    )
    script.chmod(0o755)
    return "exec ./compiler.sh"


def vendor_recipe(folder: Path, **changes: Any) -> Recipe:
    """Give a recipe that builds the vendor in a folder."""
    build = Build(
        requirements=("setuptools", "wheel", "ninja"), timeout_minutes=5, **changes.pop("build", {})
    )
    values: dict[str, Any] = {
        "name": "vendor",
        "distribution": "vendor",
        "about": "a vendor of the tests",
        "source": RecipeSource(path=str(folder)),
        "build": build,
        "device_code": DeviceCodePromise(),
        "linking": Linking(),
        **changes,
    }
    return Recipe(**values)
