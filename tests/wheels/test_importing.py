"""F10: an import that fails names the library, the symbol as people write it, and both torch builds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dih20.wheels.importing import judge
from dih20.wheels.inside import import_wheel
from tests.wheels.binaries import shared_object

A = "2.13.0+cu130 git aaaaaaaaaaaa cuda 13.0"
B = "2.13.0+cu130 git bbbbbbbbbbbb cuda 13.0"
# Without this environment's packages: torch would be imported first each time, as it is in an image.
PYTHON = str(Path(sys.base_prefix) / "bin" / "python3")


def _run(folder: Path, *names: str) -> list[dict[str, object]]:
    script = Path(import_wheel.__file__)
    done = subprocess.run(
        [PYTHON, str(script), str(folder), *names],
        capture_output=True,
        text=True,
        check=True,
    )
    entries: list[dict[str, object]] = json.loads(done.stdout)
    return entries


def test_an_undefined_c10_symbol_is_demangled_with_library_and_both_builds(tmp_path: Path) -> None:
    source = 'namespace c10 { struct SymInt { void guard_int(const char*, int) const; }; }\nvoid f(c10::SymInt* s) { s->guard_int("", 1); }\n'
    shared_object(tmp_path / "vendor" / "_C.so", source, compiler="g++")
    verdict = judge(_run(tmp_path, "vendor/_C*.so"), built_with=A, found=B)
    assert verdict.status == "fail"
    assert "_C.so lacks c10::SymInt::guard_int(char const*, int) const" in verdict.found
    assert f"built with torch {A}, found torch {B}" in verdict.found


def test_a_library_that_the_image_lacks_is_named(tmp_path: Path) -> None:
    needed = shared_object(tmp_path / "libgone.so", flags=["-Wl,-soname,libgone.so.13"])
    source = "int answer(void);\nint f(void) { return answer(); }\n"
    shared_object(tmp_path / "vendor" / "_C.so", source, flags=[str(needed)])
    needed.unlink()
    verdict = judge(_run(tmp_path, "vendor/_C.so"), built_with=A, found=A)
    assert "vendor/_C.so needs libgone.so.13, which the image does not have" in verdict.found


def test_a_module_that_imports_is_ok_and_a_crash_is_one_failed_entry(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("")
    (tmp_path / "crash.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (tmp_path / "bad.py").write_text("raise RuntimeError('no GPU here')\n")
    entries = _run(tmp_path, "good", "crash", "bad")
    assert [entry["ok"] for entry in entries] == [True, False, False]
    assert entries[1]["exit_code"] == -11
    assert "-11" in str(entries[1]["message"])
    verdict = judge(entries, built_with=A, found=A)
    assert "RuntimeError: no GPU here" in verdict.found
    assert "good" not in verdict.found


def test_a_driver_that_was_replaced_by_the_stub_is_said() -> None:
    entries = [{"name": "_C", "ok": True, "seconds": 1.0}]
    assert "no driver here" in judge(entries, built_with=A, found=A, without_driver=True).found
    assert "no driver" not in judge(entries, built_with=A, found=A).found


@pytest.mark.parametrize("symbol", ["ncclSend", "_Zbroken"])
def test_what_is_no_cpp_name_stays_as_it_is(symbol: str) -> None:
    assert import_wheel.demangled(symbol) == symbol


def test_a_plain_library_is_loaded_and_a_python_extension_is_also_initialised(
    tmp_path: Path,
) -> None:
    shared_object(tmp_path / "vendor" / "libplain.so")
    shared_object(tmp_path / "vendor" / "_C.so", "void* PyInit__C(void) { return 0; }\n")
    plain, extension = _run(tmp_path, "vendor/libplain.so", "vendor/_C.so")
    assert plain["ok"]
    assert not extension["ok"], "its init function gives no module"
    assert "SystemError" in str(extension["message"])
