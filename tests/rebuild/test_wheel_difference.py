"""What the comparison of two wheels names: member, byte range, section, and what that means."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from dih20.rebuild.binary_difference import compare_binaries, differing_range, kind_of
from dih20.rebuild.wheel_difference import WheelDifference, compare_wheels
from tests.wheels.binaries import shared_object, wheel_of

SOURCE = 'static const char text[] = "{0}";\nconst char* said(void) {{ return text; }}\n'


def _difference(first: Path, second: Path) -> WheelDifference:
    difference = compare_wheels(first, second)
    assert difference is not None
    return difference


def _with(tmp_path: Path, name: str, files: dict[str, Path | str]) -> Path:
    return wheel_of(tmp_path / name, {"vendor/__init__.py": "", **files})


def test_equal_wheels_have_no_difference(tmp_path: Path) -> None:
    first, second = (_with(tmp_path, name, {"vendor/a.py": "a = 1\n"}) for name in "ab")
    assert compare_wheels(first, second) is None


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (b"abcdef", b"abXdef", (2, 2)),
        (b"abcdef", b"aXcdXf", (1, 4)),
        (b"abc", b"abcdef", (3, 5)),
        (b"x" * 9000 + b"a" + b"y" * 9000, b"x" * 9000 + b"b" + b"y" * 9000, (9000, 9000)),
    ],
)
def test_the_range_runs_from_the_first_to_the_last_byte_that_differs(
    first: bytes, second: bytes, found: tuple[int, int]
) -> None:
    assert differing_range(first, second) == found


def test_a_text_that_holds_a_time_is_named_with_its_bytes(tmp_path: Path) -> None:
    first = _with(tmp_path, "a", {"vendor/when.py": "TIME = 1767225600\n"})
    second = _with(tmp_path, "b", {"vendor/when.py": "TIME = 1767225623\n"})
    found = _difference(first, second)
    assert found.kind == "content"
    assert found.text.startswith("vendor/when.py, bytes 15 to 16: content")
    assert "RECORD" not in found.text, "its hashes only follow"
    assert found.equal_members == 3


def test_a_member_that_one_build_lacks_is_named(tmp_path: Path) -> None:
    first = _with(tmp_path, "a", {"vendor/extra.py": ""})
    second = _with(tmp_path, "b", {})
    assert "vendor/extra.py: only in the first build" in _difference(first, second).text


def test_only_the_archives_order_or_times_differ(tmp_path: Path) -> None:
    first = _with(tmp_path, "a", {})
    second = tmp_path / first.name
    with zipfile.ZipFile(first) as source, zipfile.ZipFile(second, "w") as target:
        for name in reversed(source.namelist()):
            target.writestr(name, source.read(name))
    found = _difference(first, second)
    assert (found.kind, found.members) == ("archive", ())
    assert "every member is equal" in found.text


def test_debug_information_is_told_from_code(tmp_path: Path) -> None:
    wheels = []
    for name, place in (("a", "/somewhere"), ("b", "/elsewhere/deep")):
        flags = ["-g", f"-ffile-prefix-map={tmp_path / name}={place}"]
        library = shared_object(tmp_path / name / "_C.so", SOURCE.format("same"), flags=flags)
        wheels.append(_with(tmp_path, f"wheel-{name}", {"vendor/_C.so": library}))
    found = _difference(*wheels)
    assert found.kind == "debug information"
    assert found.members[0].section.startswith(".debug_")
    assert "only debug information and notes differ" in found.text
    assert found.members[0].device_code == "none"


def test_code_and_data_are_told_from_debug_information_and_named_by_section(tmp_path: Path) -> None:
    wheels = []
    for name in ("first", "other"):
        library = shared_object(tmp_path / name / "_C.so", SOURCE.format(name), flags=["-g"])
        wheels.append(_with(tmp_path, f"wheel-{name}", {"vendor/_C.so": library}))
    found = _difference(*wheels)
    assert found.kind == "code"
    assert found.members[0].binary is not None
    assert ".rodata" in {section.section for section in found.members[0].binary.sections}
    assert "build-id" not in found.text, "it only follows"


def test_a_range_in_a_section_is_where_the_file_differs(tmp_path: Path) -> None:
    left, right = (
        shared_object(tmp_path / name / "_C.so", SOURCE.format(f"text {name}"), flags=["-s"])
        for name in ("one", "two")
    )
    found = compare_binaries(left.read_bytes(), right.read_bytes())
    assert found is not None
    (data,) = [section for section in found.sections if section.section == ".rodata"]
    first, second = (path.read_bytes()[data.start : data.end + 1] for path in (left, right))
    assert (first, second) == (b"one", b"two")


def test_device_code_sections_are_known_by_name() -> None:
    assert kind_of(".nv_fatbin") == kind_of("__nv_relfatbin") == "device code"
    assert kind_of(".text") == kind_of(".nvFoo") == "code"
    assert kind_of(".note.gnu.build-id") == kind_of(".symtab") == "debug information"


def _fatbin(path: Path, code: str, text: str) -> Path:
    source = (
        f'__asm__(".section .nv_fatbin,\\"a\\"\\n.ascii \\"{code}\\"\\n.text");\n'
        + SOURCE.format(text)
    )
    return shared_object(path, source, flags=["-s"])


@pytest.mark.parametrize(
    ("codes", "texts", "kind", "said"),
    [
        (("kernel", "kerneL"), ("a", "a"), "device code", "device code differs"),
        (("kernel", "kernel"), ("a", "b"), "code", "device code is equal"),
    ],
)
def test_it_is_said_whether_device_code_differs_too(
    tmp_path: Path, codes: tuple[str, str], texts: tuple[str, str], kind: str, said: str
) -> None:
    wheels = []
    for name, code, text in zip("ab", codes, texts, strict=True):
        library = _fatbin(tmp_path / name / "_C.so", code, text)
        wheels.append(_with(tmp_path, f"wheel-{name}", {"vendor/_C.so": library}))
    found = _difference(*wheels)
    assert found.kind == kind
    assert said in found.text
