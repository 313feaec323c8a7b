"""run.sh on a host: what it installs, what it refuses, and that a second run takes up the first one."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.bundle.hosts import NCCL, Answer, Host, SmallBundle


def installed(host: Host, bundle: SmallBundle, into: Path, **environment: str) -> Answer:
    answer = host.run(bundle, "--into", str(into), "--no-check", **environment)
    assert answer.code == 0, answer.err
    return answer


def files(folder: Path) -> dict[str, int]:
    return {
        str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()
    }


def test_a_bare_host_gets_everything_below_one_folder(
    host: Host, whole_bundle: SmallBundle, tmp_path: Path
) -> None:
    before = files(host.root / "site")
    into = tmp_path / "di"
    answer = installed(host, whole_bundle, into)
    assert f"NCCL  {NCCL}, the only one mapped" in answer.out
    assert (into / "site/tilelang/__init__.py").is_file()
    assert (into / "site-vendor/deep_gemm/__init__.py").is_file()
    assert (into / "headers/include/zstd.h").is_file()
    assert "site-nccl" in (into / "env.sh").read_text()
    assert files(host.root / "site") == before, "the host's own packages were touched"


def test_the_engine_is_the_patched_tree_with_the_wheels_extension(
    host: Host, whole_bundle: SmallBundle, tmp_path: Path
) -> None:
    installed(host, whole_bundle, tmp_path / "di")
    engine = tmp_path / "di/engine/deepinfer"
    assert (engine / "__init__.py").read_text() == "patched = True\n"
    assert [path.name.partition(".")[0] for path in engine.glob("_C*.so")] == ["_C"]
    assert (tmp_path / "di/engine/deep_cluster/__init__.py").is_file()


def test_the_report_can_say_what_was_installed(
    host: Host, whole_bundle: SmallBundle, tmp_path: Path
) -> None:
    installed(host, whole_bundle, tmp_path / "di")
    record = json.loads((tmp_path / "di/own/BUNDLE.json").read_text())
    assert record["identity"] == whole_bundle.manifest["identity"]
    assert record["options"] == {"thin_nccl": ""}
    assert record["nccl"]["version"] == NCCL and record["nccl"]["thinned"] is None
    assert record["host"]["torch"] == "2.11.0+cu130"


def test_a_second_run_does_nothing_again(
    host: Host, whole_bundle: SmallBundle, tmp_path: Path
) -> None:
    installed(host, whole_bundle, tmp_path / "di")
    before = files(tmp_path / "di/site-vendor")
    again = installed(host, whole_bundle, tmp_path / "di")
    assert "= unpacked before" in again.out and "= deep_gemm  installed before" in again.out
    assert files(tmp_path / "di/site-vendor") == before


def test_parts_may_be_gone_once_they_are_unpacked(
    host: Host, own_bundle: SmallBundle, tmp_path: Path
) -> None:
    installed(host, own_bundle, tmp_path / "di")
    for part in own_bundle.folder.glob("di-h20.part-*"):
        part.unlink()
    assert "= unpacked before" in installed(host, own_bundle, tmp_path / "di").out


def test_a_run_that_was_stopped_while_unpacking_is_taken_up(
    host: Host, whole_bundle: SmallBundle, tmp_path: Path
) -> None:
    into = tmp_path / "di"
    installed(host, whole_bundle, into)
    mark = into / ".di-bundle.json"
    state = json.loads(mark.read_text())
    state["done"] = {}
    mark.write_text(json.dumps(state))
    (into / "site/half-written").write_text("x")
    answer = installed(host, whole_bundle, into)
    assert "unpack into" in answer.out
    assert not (into / "site/half-written").exists()


def test_two_runs_at_once_do_not_mix(host: Host, whole_bundle: SmallBundle, tmp_path: Path) -> None:
    installed(host, whole_bundle, tmp_path / "di")
    with (tmp_path / "di/.guard").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        answer = host.run(whole_bundle, "--into", str(tmp_path / "di"), "--no-check")
    assert answer.code == 40 and "another run.sh installs" in answer.err


def test_a_new_torch_installs_the_vendors_anew(
    host: Host, whole_bundle: SmallBundle, tmp_path: Path
) -> None:
    installed(host, whole_bundle, tmp_path / "di")
    again = installed(host, whole_bundle, tmp_path / "di", FAKE_TORCH="2.11.1+cu130")
    assert "= unpacked before" in again.out
    assert "deep_gemm  wheel of the bundle, torch 2.11.0+cu130" in again.out


def test_a_missing_part_is_named_and_nothing_is_written(
    host: Host, own_bundle: SmallBundle, tmp_path: Path
) -> None:
    (own_bundle.folder / "di-h20.part-002").unlink()
    answer = host.run(own_bundle, "--into", str(tmp_path / "di"))
    assert answer.code == 8
    assert "di-h20.part-002 is missing" in answer.err
    assert not (tmp_path / "di").exists()


def test_a_damaged_part_is_named_and_nothing_is_written(
    host: Host, own_bundle: SmallBundle, tmp_path: Path
) -> None:
    part = own_bundle.folder / "di-h20.part-001"
    data = bytearray(part.read_bytes())
    data[100] ^= 1
    part.write_bytes(data)
    answer = host.run(own_bundle, "--into", str(tmp_path / "di"))
    assert answer.code == 8 and "di-h20.part-001 is damaged" in answer.err
    assert not (tmp_path / "di").exists()


def test_a_script_of_another_bundle_is_named(
    host: Host, own_bundle: SmallBundle, tmp_path: Path
) -> None:
    with (own_bundle.folder / "host/dih20/bundle/onhost/saying.py").open("a") as file:
        file.write("# another\n")
    answer = host.run(own_bundle, "--into", str(tmp_path / "di"))
    assert answer.code == 8 and "onhost/saying.py is of another bundle" in answer.err
    assert not (tmp_path / "di").exists()


def test_another_bundle_is_never_installed_over_one(
    host: Host, whole_bundle: SmallBundle, tmp_path: Path
) -> None:
    other = SmallBundle(tmp_path / "other", tmp_path / "scratch", note="other").write()
    installed(host, whole_bundle, tmp_path / "di")
    before = files(tmp_path / "di")
    answer = host.run(other, "--into", str(tmp_path / "di"), "--no-check")
    assert answer.code == 40 and "holds another bundle" in answer.err
    assert files(tmp_path / "di") == before


def test_a_folder_of_somebody_else_is_left_alone(
    host: Host, whole_bundle: SmallBundle, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("mine")
    answer = host.run(whole_bundle, "--into", str(tmp_path), "--no-check")
    assert answer.code == 40 and "was not made by a bundle" in answer.err
    assert files(tmp_path).keys() == {"mine"}


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"FAKE_TORCH": "2.6.0+cu130"}, "torch 2.6.0+cu130; 2.11 or newer"),
        ({"FAKE_TORCH_CUDA": "", "FAKE_TORCH": "2.11.0+cpu"}, "built without CUDA"),
        ({"FAKE_TORCH_CUDA": "12.8"}, "built for CUDA 12.8"),
    ],
)
def test_the_wrong_torch_is_refused_before_anything_is_written(
    host: Host,
    whole_bundle: SmallBundle,
    tmp_path: Path,
    environment: dict[str, str],
    words: str,
) -> None:
    answer = host.run(whole_bundle, "--into", str(tmp_path / "di"), **environment)
    assert answer.code == 45 and words in answer.err
    assert not (tmp_path / "di").exists()


def test_two_libraries_of_nccl_in_one_process_are_refused(
    host: Host, whole_bundle: SmallBundle, tmp_path: Path
) -> None:
    answer = host.run(whole_bundle, "--into", str(tmp_path / "di"), FAKE_TORCH_MAPS_ITS_OWN="1")
    assert answer.code == 13
    assert NCCL in answer.err and "2.28.9" in answer.err


def test_without_a_gpu_engine_check_is_not_started(
    host: Host, whole_bundle: SmallBundle, tmp_path: Path
) -> None:
    answer = host.run(whole_bundle, "--into", str(tmp_path / "di"), "--stage", "b")
    assert answer.code == 45
    assert "no GPU" in answer.err and "CHECKED" not in answer.out
    assert (tmp_path / "di/env.sh").is_file(), "everything else is installed"


def test_engine_check_gets_the_users_arguments_and_the_bundles_packages(
    host: Host, whole_bundle: SmallBundle, tmp_path: Path
) -> None:
    into = tmp_path / "di"
    answer = host.run(
        whole_bundle, "--into", str(into), "--stage", "b,c", "--work", "x", FAKE_GPUS="1"
    )
    assert answer.code == 0, answer.err
    line = next(line for line in answer.out.splitlines() if line.startswith("CHECKED"))
    work = Path("x").resolve()  # of the user's folder, though the check runs in another
    assert f'["--stage", "b,c", "--work", "{work}", "--upstream"' in line
    assert line.split()[-1].startswith(f"{into}/site-nccl{os.pathsep}{into}/own")


def test_a_package_without_a_fitting_wheel_is_built_with_a_log(host: Host, tmp_path: Path) -> None:
    bundle = SmallBundle(tmp_path / "b", tmp_path / "s", wheels=("deep_ep", "deepinfer")).write()
    answer = installed(host, bundle, tmp_path / "di")
    assert "to build here: deep_gemm" in answer.out and "deep_gemm  built here" in answer.out
    assert (tmp_path / "di/site-vendor/deep_gemm/__init__.py").read_text() == "patched = True\n"
    assert "MAX_JOBS=" in (tmp_path / "di/logs/build-deep_gemm.log").read_text()


def test_a_build_that_fails_names_its_log_and_is_taken_up(host: Host, tmp_path: Path) -> None:
    bundle = SmallBundle(tmp_path / "b", tmp_path / "s", wheels=("deep_ep", "deepinfer")).write()
    answer = host.run(bundle, "--into", str(tmp_path / "di"), "--no-check", FAKE_BROKEN_BUILD="1")  # fmt: skip
    assert answer.code == 20
    assert "deep_gemm was not built" in answer.err and "error: no such thing" in answer.err
    assert "logs/build-deep_gemm.log" in answer.err
    assert "= unpacked before" in installed(host, bundle, tmp_path / "di").out


def test_an_old_compiler_matters_only_where_something_is_built(
    whole_bundle: SmallBundle, tmp_path: Path
) -> None:
    host = Host(tmp_path / "host").make()
    host.program("bin/g++", "echo 12.2.0")
    installed(host, whole_bundle, tmp_path / "one")
    other = SmallBundle(tmp_path / "b", tmp_path / "s", wheels=()).write()
    answer = host.run(other, "--into", str(tmp_path / "two"), "--no-check")
    assert answer.code == 45 and "g++ 12.2.0; 13 or newer" in answer.err


def test_verify_says_what_is_wrong_and_writes_nothing(
    host: Host, own_bundle: SmallBundle, tmp_path: Path
) -> None:
    before = files(own_bundle.folder)
    assert host.run(own_bundle, "verify").code == 0
    assert host.run(own_bundle, "verify", FAKE_TORCH="2.6.0+cu130").code == 45
    assert files(own_bundle.folder) == before


def test_the_script_names_what_is_not_there(
    host: Host, own_bundle: SmallBundle, tmp_path: Path
) -> None:
    answer = host.run(own_bundle, "verify", PYTHON="/nowhere/python3")
    assert answer.code == 45 and "no /nowhere/python3" in answer.err
    shutil.rmtree(own_bundle.folder / "host")
    answer = host.run(own_bundle, "verify")
    assert answer.code == 2 and "no host/__main__.py" in answer.err


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": 1}'])
def test_a_spoiled_manifest_is_no_trace(
    host: Host, own_bundle: SmallBundle, tmp_path: Path, content: str
) -> None:
    (own_bundle.folder / "manifest.json").write_text(content)
    answer = host.run(own_bundle, "--into", str(tmp_path / "di"))
    assert answer.code == 8 and "Traceback" not in answer.err


@pytest.mark.parametrize(
    "words",
    [[], ["nonsense", "--into", "x"], ["--into", "x", "cache"], ["--into", "x", "cache", "export"]],
)
def test_a_command_line_that_makes_no_sense_is_refused(
    host: Host, whole_bundle: SmallBundle, words: list[str]
) -> None:
    answer = host.run(whole_bundle, *words)
    assert answer.code == 2 and "Traceback" not in answer.err
