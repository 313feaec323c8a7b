"""Real builds in containers of the stand-in base: what goes right, and every way it goes wrong."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dih20.config import load_mirrors
from dih20.console import Console
from dih20.errors import (
    CompilerCrash,
    CompilerKilled,
    HeaderMismatch,
    InspectionFailed,
    NotForSm90,
    WheelError,
)
from dih20.fetch import fetch_files
from dih20.lock import Lock
from dih20.wheels.build import Limits
from dih20.wheels.container import Job, run_job
from dih20.wheels.image_facts import facts_of
from dih20.wheels.importing import import_in_image
from dih20.wheels.recipes import DeviceCodePromise, Linking, Recipe, RecipeSource, load_all
from dih20.wheels.rows import Row
from dih20.wheels.store import Store
from dih20.wheels.wheel_set import build_wheels, refuse_mismatch, wheels_for
from tests.signalled import signalled
from tests.wheels.vendors import dying_compiler, ninja_vendor, vendor_recipe

pytestmark = pytest.mark.docker
NVCC = "nvcc -Xcompiler -fPIC -gencode=arch=compute_{0},code=sm_{0}"
WHEEL_BUILD = {"label": "dih20.role=wheel-build"}
AOT = DeviceCodePromise(kind="aot", architectures=("sm_90a",))


@dataclass(kw_only=True)
class Bench:
    """An engine with the stand-in base, a lock whose files are in the cache, a store of its own."""

    client: Any
    image: str
    lock: Lock
    store: Store

    def build(self, *recipes: Recipe, limits: Limits | None = None) -> list[Row]:
        ui = Console(as_json=True)
        return build_wheels(
            ui, self.client, self.image, self.lock, recipes=recipes, store=self.store, limits=limits
        )


@pytest.fixture(scope="module")
def locked() -> Lock:
    lock = Lock.load()
    files = [*lock.toolkit_wheels(), *lock.inspector_wheels(), *lock.build_requirements("cp313")]
    fetch_files(Console(as_json=True), files, load_mirrors(), what="files for wheel builds")
    return lock


@pytest.fixture
def bench(
    engine: Any, standin_image: str, locked: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bench:
    monkeypatch.setenv("DI_BUILD", str(tmp_path / "build"))
    return Bench(client=engine, image=standin_image, lock=locked, store=Store(tmp_path / "wheels"))


def _left_over(bench: Bench) -> list[Any]:
    return list(bench.client.containers.list(all=True, filters=WHEEL_BUILD))


def test_the_probe_is_built_judged_and_then_a_hit_within_two_seconds(bench: Bench) -> None:
    (probe,) = [recipe for recipe in load_all() if recipe.name == "h20_probe"]
    (row,) = bench.build(probe)
    assert (row.status, row.note) == ("built", "never built")
    assert row.wheel is not None
    found = {verdict["check"]: verdict for verdict in row.wheel.verdicts}
    assert found["device code"]["found"] == "libh20_probe.so: sm_90a"
    assert found["import"]["status"] == "ok"
    assert {verdict["status"] for verdict in row.wheel.verdicts} <= {"ok", "not applicable"}
    assert row.wheel.build["peak_memory_bytes"] > 50e6
    assert row.wheel.build["base"] == "stand-in"

    started = time.monotonic()
    (again,) = bench.build(probe)
    assert time.monotonic() - started < 2.0
    assert again.status == "hit"
    assert again.seconds < 1.0
    assert again.wheel == row.wheel

    changed = probe.model_copy(
        update={"build": probe.build.model_copy(update={"environment": {"CUDAFLAGS": "-O1"}})}
    )
    why = _first_note(bench, changed)
    assert why.startswith("recipe: ")
    assert "environment: " in why
    assert "source" not in why
    assert not _left_over(bench)


def _first_note(bench: Bench, recipe: Recipe) -> str:
    from dih20.wheels.plan import Wanted, consider

    facts = facts_of(bench.client, bench.image)
    (item,) = consider(bench.lock, facts, recipe, bench.store)
    assert isinstance(item, Wanted)
    assert item.hit is None
    return item.why


def test_a_killed_compiler_is_tried_once_more_with_fewer_jobs_and_then_named(
    bench: Bench, tmp_path: Path
) -> None:
    folder = tmp_path / "vendor"
    folder.mkdir()
    command = dying_compiler(folder, "KILL", on="part3")
    ninja_vendor(folder, compile_command=command, files=4, suffix="c")
    with pytest.raises(CompilerKilled) as caught:
        bench.build(vendor_recipe(folder), limits=Limits(jobs=48, memory_gb=16))
    for part in ("likely for memory", "part3.c", "1 job(s)", "16.0 GB", "48 asked for"):
        assert part in caught.value.found
    log = next((tmp_path / "build" / "logs").glob("wheel-vendor-*.log")).read_text()
    assert log.count("== vendor: env -i") == 2
    assert not _left_over(bench)


def test_a_retry_with_fewer_jobs_can_succeed(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "vendor"
    folder.mkdir()
    command = dying_compiler(folder, "KILL", on="part3", unless='[ "$MAX_JOBS" = 1 ]')
    ninja_vendor(folder, compile_command=command, files=4, suffix="c")
    (row,) = bench.build(vendor_recipe(folder), limits=Limits(jobs=48))
    assert row.status == "built"
    assert row.wheel is not None
    assert row.wheel.build["jobs"] == 1


def test_a_crashed_compiler_is_named_with_file_and_nvcc_and_not_tried_again(
    bench: Bench, tmp_path: Path
) -> None:
    folder = tmp_path / "vendor"
    folder.mkdir()
    command = dying_compiler(folder, "SEGV", on="part3")
    ninja_vendor(folder, compile_command=command, files=4, suffix="c")
    with pytest.raises(CompilerCrash) as caught:
        bench.build(vendor_recipe(folder))
    for part in ("compiler crash", "part3.c", "nvcc 13.0.88"):
        assert part in caught.value.found
    log = next((tmp_path / "build" / "logs").glob("wheel-vendor-*.log")).read_text()
    assert log.count("== vendor: env -i") == 1


def test_memory_that_a_container_may_not_have_is_a_kill(bench: Bench, tmp_path: Path) -> None:
    hog = "python3 -c 'x = bytearray(700 << 20); print(len(x))' #"
    folder = ninja_vendor(tmp_path / "vendor", compile_command=hog, suffix="c")
    with pytest.raises(CompilerKilled) as caught:
        bench.build(vendor_recipe(folder), limits=Limits(jobs=48, memory_gb=0.512))
    assert "1 job(s)" in caught.value.found
    assert "0.5 GB" in caught.value.found


def test_a_blackwell_only_vendor_ends_the_build_unless_it_is_optional(
    bench: Bench, tmp_path: Path
) -> None:
    folder = ninja_vendor(tmp_path / "vendor", compile_command=NVCC.format("100a"))
    skipped = Recipe(
        name="vendor_a",
        distribution="vendor-a",
        about="arch list of sm_100a only, asks for nvcc 13.1",
        policy="drop-in",
        reason="its kernels are sm_100a only",
        drop_in=RecipeSource(path="dropins/not-there"),
        optional=True,
    )
    built = vendor_recipe(
        folder,
        build={"nvcc": True},
        device_code=AOT,
        policy="real-or-drop-in",
        drop_in=RecipeSource(path="dropins/not-there"),
        optional=True,
    )
    a, b = bench.build(skipped, built)
    assert a.status == "skipped"
    assert "not buildable for SM90, skipped by policy, replaced by dropins/not-there" in a.note
    assert b.status == "unusable"
    assert "built, contains no sm_90a (it holds sm_100a), marked unusable on SM90" in b.note
    assert "fallback dropins/not-there" in b.note
    assert list(bench.store.wheels()) == []

    with pytest.raises(NotForSm90):
        bench.build(built.model_copy(update={"optional": False}))
    with pytest.raises(NotForSm90):
        bench.build(skipped.model_copy(update={"optional": False}))


def test_an_import_that_fails_in_the_image_fails_the_build(bench: Bench, tmp_path: Path) -> None:
    folder = ninja_vendor(tmp_path / "vendor", compile_command="g++ -x c++ -fPIC", suffix="c")
    (folder / "part1.c").write_text(
        "namespace c10 { struct SymInt { void guard_int(const char*, int) const; }; }\n"
        'void f(c10::SymInt* s) { s->guard_int("", 1); }\n'
    )
    with pytest.raises(InspectionFailed) as caught:
        bench.build(vendor_recipe(folder, imports=("vendor/_C.so",)))
    assert "_C.so lacks c10::SymInt::guard_int(char const*, int) const" in caught.value.found
    assert "built with torch none, found torch none" in caught.value.found
    assert list(bench.store.wheels()) == []


def test_missing_headers_are_all_named_with_their_packages_before_any_compiler(
    bench: Bench, tmp_path: Path
) -> None:
    folder = ninja_vendor(tmp_path / "vendor", compile_command=NVCC.format("90a"))
    headers = ("cuda_runtime.h", "cublas_v2.h", "cusolverDn.h", "cusparse.h", "cuda/std/utility")
    with pytest.raises(HeaderMismatch) as caught:
        bench.build(vendor_recipe(folder, build={"nvcc": True, "headers": headers}))
    for part in (
        "cublas_v2.h",
        "nvidia-cublas",
        "cusolverDn.h",
        "nvidia-cusolver",
        "nvidia-cusparse",
    ):
        assert part in caught.value.found
    assert "cuda/std/utility" not in caught.value.found, "the mounted toolkit has it"
    log = next((tmp_path / "build" / "logs").glob("wheel-vendor-*.log")).read_text()
    assert "== build" not in log.split("== headers", 1)[1]


def test_a_command_sees_only_the_environment_it_is_given_and_no_network(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    job = Job(
        argv=("sh", "-c", "env | sort > /di/out/env; ls /sys/class/net > /di/out/net"),
        environment={"PATH": "/usr/bin:/bin", "ONLY": "this"},
        writable={"/di/out": tmp_path / "out"},
    )
    outcome = run_job(bench.client, bench.image, job, log=tmp_path / "log")
    assert outcome.exit_code == 0
    seen = {line.split("=")[0] for line in (tmp_path / "out" / "env").read_text().splitlines()}
    assert seen <= {"PATH", "ONLY", "PWD", "SHLVL", "_"}
    assert (tmp_path / "out" / "net").read_text().split() == ["lo"]


def test_a_build_that_never_ends_is_stopped_and_leaves_no_container(
    bench: Bench, tmp_path: Path
) -> None:
    job = Job(argv=("sleep", "600"), environment={"PATH": "/usr/bin:/bin"}, timeout_s=1.5)
    started = time.monotonic()
    with pytest.raises(WheelError, match="still running"):
        run_job(bench.client, bench.image, job, log=tmp_path / "log")
    assert time.monotonic() - started < 20
    assert not _left_over(bench)


def test_a_build_that_is_told_to_end_leaves_no_container(bench: Bench, tmp_path: Path) -> None:
    job = Job(argv=("sleep", "600"), environment={"PATH": "/usr/bin:/bin"}, timeout_s=30)
    running = bench.client.containers.list
    with (
        signalled(lambda: running(sparse=True, filters=WHEEL_BUILD)),
        pytest.raises(KeyboardInterrupt),
    ):
        run_job(bench.client, bench.image, job, log=tmp_path / "log")
    assert not _left_over(bench)


def test_wheels_of_another_python_or_torch_are_refused(bench: Bench, tmp_path: Path) -> None:
    folder = ninja_vendor(tmp_path / "vendor", compile_command="gcc -fPIC", suffix="c")
    (row,) = bench.build(vendor_recipe(folder))
    assert row.wheel is not None
    facts = facts_of(bench.client, bench.image)
    refuse_mismatch(row.wheel, facts)
    with pytest.raises(WheelError, match="built for cp313"):
        refuse_mismatch(row.wheel, dataclasses.replace(facts, python_tag="cp312"))
    torched = dataclasses.replace(
        row.wheel, parts={**row.wheel.parts, "torch": "2.13.0 git a cuda 13.0"}
    )
    with pytest.raises(WheelError, match="do not move between torch builds"):
        refuse_mismatch(torched, dataclasses.replace(facts, torch="2.13.0 git b cuda 13.0"))


def test_a_set_that_is_not_complete_names_what_is_missing(bench: Bench) -> None:
    with pytest.raises(WheelError) as caught:
        wheels_for(bench.client, bench.image, bench.lock, only="h20_probe", store=bench.store)
    assert "h20_probe (never built)" in caught.value.found
    assert "build-vendor" in caught.value.remedy


def test_linking_with_the_driver_goes_through_the_stand_in_and_leaves_the_drivers_name(
    bench: Bench, tmp_path: Path
) -> None:
    folder = ninja_vendor(
        tmp_path / "vendor", compile_command="gcc -fPIC", suffix="c", link="-lcuda"
    )
    (folder / "part1.c").write_text(
        "int cuInit(unsigned);\nint start(void) { return cuInit(0); }\n"
    )
    linking = Linking(driver_stub=True, libraries=("libcuda.so.1",))
    with pytest.raises(WheelError, match="cannot find -lcuda"):
        bench.build(vendor_recipe(folder, linking=Linking(libraries=("libcuda.so.1",))))
    (row,) = bench.build(vendor_recipe(folder, linking=linking, imports=("vendor/_C.so",)))
    assert row.wheel is not None
    found = {verdict["check"]: verdict for verdict in row.wheel.verdicts}
    assert "libcuda.so.1" in found["needed libraries"]["found"]
    assert found["search paths"]["found"] == "none"


def test_an_image_that_searches_a_stubs_folder_is_refused(bench: Bench, tmp_path: Path) -> None:
    facts = facts_of(bench.client, bench.image)
    stubs = dataclasses.replace(facts, run_time={"LD_LIBRARY_PATH": "/usr/local/cuda/lib64/stubs"})
    with pytest.raises(WheelError, match="stubs"):
        import_in_image(
            bench.client,
            stubs,
            tmp_path / "any.whl",
            ("vendor",),
            built_with="none",
            log=tmp_path / "log",
        )
