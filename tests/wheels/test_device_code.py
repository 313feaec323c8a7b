"""F04 B: what a binary holds is read from the binary, by two readers that must agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from dih20.errors import InspectionFailed
from dih20.wheels.device_code import device_code_of, read_fatbins
from dih20.wheels.inspector import inspect_wheel
from dih20.wheels.recipes import DeviceCodePromise
from tests.wheels.binaries import cuda_object, recipe, shared_object, wheel_of

HOPPER = "arch=compute_90a,code=sm_90a"
BLACKWELL = "arch=compute_100a,code=sm_100a"
PTX = "arch=compute_90a,code=compute_90a"


def _liar(folder: Path, architecture: str) -> Path:
    """A cuobjdump that always lists one architecture, whatever the file holds."""
    program = folder / "cuobjdump"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --list-elf ] && echo "ELF file    1: x.1.{architecture}.cubin"\nexit 0\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("cuda")
    return {
        "hopper": cuda_object(folder / "hopper.so", [HOPPER]),
        "blackwell": cuda_object(folder / "blackwell.so", [BLACKWELL]),
        "ptx": cuda_object(folder / "ptx.so", [PTX]),
    }


@pytest.mark.nvcc
def test_machine_code_and_ptx_are_told_apart(objects: dict[str, Path]) -> None:
    assert read_fatbins(objects["hopper"]).machine_code == {"sm_90a"}
    assert read_fatbins(objects["blackwell"]).machine_code == {"sm_100a"}
    # nvcc links an empty sm_90a image for registration where only PTX was asked for; PTX is listed as such
    assert read_fatbins(objects["ptx"]).ptx == {"sm_90a"}


@pytest.mark.nvcc
def test_readers_that_disagree_are_an_error(tmp_path: Path, objects: dict[str, Path]) -> None:
    assert device_code_of(objects["hopper"], _liar(tmp_path, "sm_90a")).machine_code == {"sm_90a"}
    with pytest.raises(InspectionFailed) as caught:
        device_code_of(objects["blackwell"], _liar(tmp_path, "sm_90a"))
    assert "sm_100a" in caught.value.found
    assert "sm_90a" in caught.value.found


@pytest.mark.nvcc
@pytest.mark.parametrize(("which", "status"), [("hopper", "ok"), ("blackwell", "fail")])
def test_a_blackwell_only_wheel_is_unusable_although_it_built(
    tmp_path: Path, objects: dict[str, Path], which: str, status: str
) -> None:
    of = recipe(
        device_code=DeviceCodePromise(kind="aot", architectures=("sm_90a",)),
        drop_in="dropins/vendor",
    )
    wheel = wheel_of(tmp_path, {"vendor/_C.so": objects[which]})
    verdicts = {v.check: v for v in inspect_wheel(wheel, of, python_tag="cp313")}
    assert verdicts["device code"].status == status
    if status == "fail":
        assert (
            "built, contains no sm_90a (it holds sm_100a), marked unusable"
            in verdicts["device code"].found
        )


@pytest.mark.nvcc
@pytest.mark.parametrize("kind", ["jit", "none"])
def test_machine_code_that_nobody_promised_is_an_error(
    tmp_path: Path, objects: dict[str, Path], kind: str
) -> None:
    of = recipe(device_code=DeviceCodePromise(kind=kind))  # type: ignore[arg-type]
    wheel = wheel_of(tmp_path, {"vendor/_C.so": objects["hopper"]})
    verdict = {v.check: v for v in inspect_wheel(wheel, of, python_tag="cp313")}["device code"]
    assert verdict.status == "fail"
    assert "_C.so holds sm_90a" in verdict.found


def test_a_file_without_device_code_is_an_empty_answer(tmp_path: Path) -> None:
    code = read_fatbins(shared_object(tmp_path / "_C.so"))
    assert (code.machine_code, code.ptx) == (frozenset(), frozenset())
    assert code.text == "none"
