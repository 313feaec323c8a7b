"""The package imports anywhere, offers what it lists, and is complete as a distribution."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import h20_ops
from h20_ops import errors, torch_ref
from h20_ops.errors import H20OpsError

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "h20_ops"


def run_python(code: str) -> str:
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert shown.returncode == 0, shown.stderr
    return shown.stdout.strip()


def test_importing_it_loads_neither_torch_nor_tilelang() -> None:
    code = "import sys, h20_ops; print(sorted({'torch', 'tilelang'} & set(sys.modules)))"
    assert run_python(code) == "[]"


def test_importing_every_module_needs_no_gpu_and_no_tilelang() -> None:
    names = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in PACKAGE.rglob("*.py")
        if "build" not in path.parts
    )
    code = (
        "import importlib, sys; sys.modules['tilelang'] = None\n"
        f"[importlib.import_module(name) for name in {names!r}]\n"
        "print('tilelang' in [k for k, v in sys.modules.items() if v is not None])"
    )
    assert run_python(code) == "False"


def test_an_operator_is_a_function_however_its_module_was_imported() -> None:
    code = (
        "import h20_ops.torch_ref.sparse_mla_prefill, h20_ops.torch_ref as r\n"
        "from h20_ops.torch_ref.sparse_mla_prefill import sparse_mla_prefill as f\n"
        "print(callable(r.sparse_mla_prefill), r.sparse_mla_prefill is f)"
    )
    assert run_python(code) == "True True"


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'h20_ops' has no attribute 'sparse_mla'"):
        getattr(h20_ops, "sparse_" + "mla")


def test_the_public_list_is_complete() -> None:
    twins = {path.stem for path in (PACKAGE / "torch_ref").glob("*.py")} - {
        "__init__",
        "attention",
        "index_values",
        "reblock",
    }
    operators = {path.stem for path in PACKAGE.glob("*.py") if path.stem in twins}
    assert twins == operators == set(h20_ops.__all__) - {"__version__"} == set(torch_ref.__all__)
    for name in operators:
        ours, twin = getattr(h20_ops, name), getattr(torch_ref, name)
        assert inspect.signature(ours) == inspect.signature(twin), name
    assert set(h20_ops.__all__) <= set(dir(h20_ops))


def test_both_re_encodings_have_their_twins_signatures() -> None:
    from h20_ops import reblock
    from h20_ops.torch_ref import reblock as twin

    for name in ("reblock_fp4", "reblock_fp8"):
        assert inspect.signature(getattr(reblock, name)) == inspect.signature(getattr(twin, name))


def test_the_distribution_lists_every_package() -> None:
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in PACKAGE.rglob("__init__.py")
        if "build" not in path.parts
    }
    assert set(project["tool"]["setuptools"]["packages"]) == found


def test_every_error_says_what_was_found_expected_and_what_to_do() -> None:
    tree = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert len(tree) == 8
    for kind in tree:
        assert issubclass(kind, H20OpsError)
        assert kind.__name__ in (errors.__doc__ or ""), f"{kind.__name__} is not in the drawing"
        message = str(kind("this", "that", "do it"))
        assert message == "found: this\nexpected: that\nnext: do it"


def test_every_file_that_is_not_python_is_packaged() -> None:
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]
    data = {
        path
        for package, globs in patterns.items()
        for pattern in globs
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    others = {
        path
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and "build" not in path.parts
    }
    left_out = others - data - {PACKAGE / "README.md", PACKAGE / "pyproject.toml"}
    assert not left_out, f"not in the wheel: {sorted(str(p) for p in left_out)}"
