"""--thin-site leaves out what no run reads, and strips libraries that still load."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from dih20.bundle.entries import Entry, of_bytes, of_file
from dih20.bundle.thin_site import thin_site
from dih20.errors import UsageError
from tests.wheels.binaries import shared_object

_LARGE_SOURCE = (
    "char data[3000000] = {1};\nstatic int unused_%d;\nint answer(void) { return 42; }\n"
)


def thinned(*entries: Entry) -> dict[str, Entry]:
    return {entry.name: entry for entry in thin_site(entries)}


def test_what_no_run_reads_is_left_out() -> None:
    gone = [
        "site/xgrammar/lib/libxgrammar.a",
        "site/tilelang/src/op/copy.cc",
        "site/tilelang/3rdparty/tvm/src/ir/expr.cc",
        "site/tilelang/3rdparty/cutlass/tools/library/x.cu",
        "site/orjson/__init__.pyi",
    ]
    stay = [
        "site/tilelang/src/tl_templates/cuda/common.h",
        "site/tilelang/3rdparty/cutlass/include/cute/tensor.hpp",
        "site/tilelang/3rdparty/tvm/python/tvm/__init__.py",
        "site/tilelang/3rdparty/tvm/include/tvm/ffi.h",
        "site/other/src/op/copy.cc",
    ]
    assert list(thinned(*(of_bytes(name, b"x") for name in gone + stay))) == stay


def test_a_large_library_loses_its_symbols_and_still_loads(tmp_path: Path) -> None:
    source = _LARGE_SOURCE % 1 + "".join(
        f"static int f{i}(void) {{ return {i}; }}\n" for i in range(9000)
    )
    library = shared_object(tmp_path / "lib.so", source, flags=["-g3"])
    (entry,) = thinned(of_file("site/p/lib.so", library)).values()
    with entry.open() as content:
        thin = content.read()
    assert len(thin) == entry.size < library.stat().st_size
    (tmp_path / "thin.so").write_bytes(thin)
    assert ctypes.CDLL(str(tmp_path / "thin.so")).answer() == 42


def test_what_strip_cannot_read_stays_as_it_is() -> None:
    given = of_bytes("site/p/lib.so", b"no library" * 200_000)
    (entry,) = thinned(given).values()
    assert entry is given


def test_without_strip_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="no strip"):
        thinned(of_bytes("site/a.py", b""))
