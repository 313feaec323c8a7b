"""The inspector reads files: each promise is broken once with a real binary, and named."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from dih20.errors import InspectionFailed, NotForSm90
from dih20.wheels.inspector import inspect_wheel, raise_for
from dih20.wheels.recipes import DeviceCodePromise, Linking, Recipe
from dih20.wheels.verdicts import Verdict
from tests.wheels.binaries import recipe, shared_object, wheel_of


def _verdicts(wheel: Path, of: Recipe, **kw: object) -> dict[str, Verdict]:
    found = inspect_wheel(wheel, of, python_tag="cp313", **kw)  # type: ignore[arg-type]
    return {verdict.check: verdict for verdict in found}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return shared_object(tmp_path / "_C.so")


def test_a_wheel_that_keeps_its_promises_has_no_failed_verdict(tmp_path: Path, plain: Path) -> None:
    wheel = wheel_of(tmp_path, {"vendor/_C.so": plain})
    verdicts = _verdicts(wheel, recipe())
    assert {v.status for v in verdicts.values()} <= {"ok", "not applicable"}
    raise_for(recipe(), wheel, verdicts.values())


def test_a_library_that_is_not_listed_is_named_with_the_file_that_needs_it(tmp_path: Path) -> None:
    shared_object(tmp_path / "libfoo.so", flags=["-Wl,-soname,libfoo.so.3"])
    needs = shared_object(
        tmp_path / "_C.so",
        "int answer(void);\nint f(void){return answer();}",
        flags=[str(tmp_path / "libfoo.so")],
    )
    wheel = wheel_of(tmp_path, {"vendor/_C.so": needs})
    verdict = _verdicts(wheel, recipe())["needed libraries"]
    assert (verdict.status, verdict.found) == ("fail", "_C.so needs libfoo.so.3")
    allowed = recipe(linking=Linking(libraries=("libfoo.so.3",)))
    assert _verdicts(wheel, allowed)["needed libraries"].status == "ok"


def test_a_library_inside_the_same_wheel_may_be_needed(tmp_path: Path) -> None:
    own = shared_object(tmp_path / "libown.so", flags=["-Wl,-soname,libown.so"])
    needs = shared_object(
        tmp_path / "_C.so", "int answer(void);\nint f(void){return answer();}", flags=[str(own)]
    )
    wheel = wheel_of(tmp_path, {"vendor/_C.so": needs, "vendor/libown.so": own})
    assert _verdicts(wheel, recipe())["needed libraries"].status == "ok"


@pytest.mark.parametrize("tag", ["--enable-new-dtags", "--disable-new-dtags"])
def test_a_search_path_to_a_stubs_folder_fails_whatever_the_recipe_lists(
    tmp_path: Path, tag: str
) -> None:
    flags = ["-Wl,-rpath,/usr/local/cuda/lib64/stubs", f"-Wl,{tag}"]
    wheel = wheel_of(tmp_path, {"vendor/_C.so": shared_object(tmp_path / "_C.so", flags=flags)})
    verdict = _verdicts(wheel, recipe(linking=Linking(rpaths=("*",))))["search paths"]
    assert verdict.status == "fail"
    assert "/usr/local/cuda/lib64/stubs" in verdict.found


def test_a_search_path_is_allowed_only_where_the_recipe_says(tmp_path: Path) -> None:
    flags = ["-Wl,-rpath,/site/nvidia/nccl/lib"]
    wheel = wheel_of(tmp_path, {"vendor/_C.so": shared_object(tmp_path / "_C.so", flags=flags)})
    assert _verdicts(wheel, recipe())["search paths"].status == "fail"
    listed = recipe(linking=Linking(rpaths=("{nccl}/lib",)))
    places = {"nccl": "/site/nvidia/nccl"}
    assert _verdicts(wheel, listed, places=places)["search paths"].status == "ok"
    elsewhere = {"nccl": "/other/nvidia/nccl"}
    assert _verdicts(wheel, listed, places=elsewhere)["search paths"].status == "fail"


def test_linking_with_the_driver_must_leave_the_drivers_name_in_the_file(
    tmp_path: Path, plain: Path
) -> None:
    wheel = wheel_of(tmp_path, {"vendor/_C.so": plain})
    verdict = _verdicts(wheel, recipe(linking=Linking(driver_stub=True)))["needed libraries"]
    assert verdict.status == "fail"
    assert "libcuda.so.1" in verdict.expected


@pytest.fixture
def libnccl(tmp_path: Path) -> Path:
    return shared_object(
        tmp_path / "libnccl.so.2",
        "int ncclSend(void){return 0;}",
        flags=["-Wl,-soname,libnccl.so.2"],
    )


def test_an_nccl_symbol_that_the_locked_library_lacks_is_named(
    tmp_path: Path, libnccl: Path
) -> None:
    source = "int ncclSend(void); int ncclCommQueryProperties(void);\nint f(void){return ncclSend()+ncclCommQueryProperties();}"
    wheel = wheel_of(tmp_path, {"vendor/_C.so": shared_object(tmp_path / "_C.so", source)})
    verdict = _verdicts(wheel, recipe(), nccl_library=libnccl)["nccl symbols"]
    assert verdict.status == "fail"
    assert verdict.found == "libnccl.so.2 does not export ncclCommQueryProperties"
    assert _verdicts(wheel, recipe())["nccl symbols"].status == "fail"


def test_nccl_symbols_that_are_exported_pass(tmp_path: Path, libnccl: Path) -> None:
    source = "int ncclSend(void);\nint f(void){return ncclSend();}"
    wheel = wheel_of(tmp_path, {"vendor/_C.so": shared_object(tmp_path / "_C.so", source)})
    assert _verdicts(wheel, recipe(), nccl_library=libnccl)["nccl symbols"].status == "ok"


def test_machine_code_under_a_tag_for_any_platform_fails(tmp_path: Path, plain: Path) -> None:
    wheel = wheel_of(tmp_path, {"vendor/_C.so": plain}, tag="py3-none-any")
    verdict = _verdicts(wheel, recipe())["tag"]
    assert verdict.status == "fail"
    assert "_C.so is machine code" in verdict.found


def test_machine_code_is_found_whatever_its_file_is_called(tmp_path: Path, plain: Path) -> None:
    wheel = wheel_of(tmp_path, {"vendor/data.bin": plain}, tag="py3-none-any")
    assert _verdicts(wheel, recipe())["tag"].status == "fail"


def test_a_platform_tag_without_machine_code_fails(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, {"vendor/__init__.py": ""})
    assert "no machine code inside" in _verdicts(wheel, recipe())["tag"].found


def test_another_python_than_the_images_fails(tmp_path: Path, plain: Path) -> None:
    wheel = wheel_of(tmp_path, {"vendor/_C.so": plain}, tag="cp312-cp312-linux_x86_64")
    verdict = _verdicts(wheel, recipe())["tag"]
    assert (verdict.status, verdict.found) == ("fail", "built for cp312")


def test_a_renamed_wheel_fails(tmp_path: Path, plain: Path) -> None:
    wheel = wheel_of(tmp_path, {"vendor/_C.so": plain}, tag_inside="cp312-cp312-linux_x86_64")
    verdict = _verdicts(wheel, recipe())["tag"]
    assert "WHEEL file inside says cp312" in verdict.found


def test_a_file_that_is_no_wheel_by_name_fails(tmp_path: Path, plain: Path) -> None:
    wheel = wheel_of(tmp_path, {"vendor/_C.so": plain})
    blank = wheel.rename(wheel.with_name("vendor--cp313-cp313-linux_x86_64.whl"))
    assert _verdicts(blank, recipe())["tag"].status == "fail"


def test_a_newer_c_library_than_promised_fails(tmp_path: Path) -> None:
    source = '#include <stdlib.h>\nint f(void){return getenv("A") != 0;}'
    wheel = wheel_of(tmp_path, {"vendor/_C.so": shared_object(tmp_path / "_C.so", source)})
    assert (
        _verdicts(wheel, recipe(linking=Linking(glibc_at_most="2.1")))["C library"].status == "fail"
    )
    assert (
        _verdicts(wheel, recipe(linking=Linking(glibc_at_most="2.35")))["C library"].status == "ok"
    )


def test_ahead_of_time_code_that_is_not_there_makes_the_wheel_unusable(
    tmp_path: Path, plain: Path
) -> None:
    of = recipe(
        device_code=DeviceCodePromise(kind="aot", architectures=("sm_90a",)),
        drop_in="dropins/vendor",
    )
    wheel = wheel_of(tmp_path, {"vendor/_C.so": plain})
    verdicts = _verdicts(wheel, of)
    with pytest.raises(NotForSm90) as caught:
        raise_for(of, wheel, verdicts.values())
    assert "built, contains no sm_90a" in caught.value.found
    assert "fallback dropins/vendor" in caught.value.found


def test_several_broken_promises_are_all_in_one_error(tmp_path: Path) -> None:
    flags = ["-Wl,-rpath,/tmp/x"]
    wheel = wheel_of(
        tmp_path,
        {"vendor/_C.so": shared_object(tmp_path / "_C.so", flags=flags)},
        tag="py3-none-any",
    )
    with pytest.raises(InspectionFailed) as caught:
        raise_for(recipe(), wheel, _verdicts(wheel, recipe()).values())
    assert "tag:" in caught.value.found
    assert "search paths:" in caught.value.found


def test_a_member_that_leaves_the_folder_is_not_written_outside(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, {"vendor/__init__.py": ""}, tag="py3-none-any")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("../../escaped", "x")
    _verdicts(wheel, recipe())
    assert not list(tmp_path.parent.rglob("escaped"))
