"""Header, distribution and mapped library are each compared with the lock; each comparison can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import ImageError, NcclMismatch
from dih20.image.build import build_image
from dih20.image.inside import nccl
from dih20.image.steps import Step
from dih20.lock import Lock, LockedFile

RIGHT, OLDER = "2.32.3", "2.28.9"


def facts(**changed: Any) -> dict[str, Any]:
    path = "/usr/lib/python3/nvidia/nccl"
    return {
        "headers": {f"{path}/include/nccl.h": RIGHT},
        "distributions": {"nvidia-nccl-cu13": RIGHT},
        "torch": "2.13.0+cu130",
        "cuda": "13.0",
        "mapped": {f"{path}/lib/libnccl.so.2": RIGHT},
        **changed,
    }


def failed(found: dict[str, Any]) -> list[str]:
    return [check for check, status, _ in nccl.judge(found, RIGHT) if status == "failed"]


def test_three_times_the_locked_version_is_ok() -> None:
    assert [status for _, status, _ in nccl.judge(facts(), RIGHT)] == ["ok", "ok", "ok"]


@pytest.mark.parametrize(
    ("changed", "check"),
    [
        ({"headers": {"/opt/di/include/nccl.h": OLDER}}, "header"),
        ({"headers": {"/a/nccl.h": RIGHT, "/b/nccl.h": OLDER}}, "header"),
        ({"headers": {}}, "header"),
        ({"distributions": {"nvidia-nccl-cu13": OLDER}}, "distribution"),
        ({"distributions": {}}, "distribution"),
        ({"distributions": {"nvidia-nccl-cu12": RIGHT, "nvidia-nccl-cu13": RIGHT}}, "distribution"),
        ({"mapped": {"/x/libnccl.so.2": OLDER}}, "mapped library"),
        ({"mapped": {"/x/libnccl.so.2": RIGHT, "/y/libnccl.so.2": OLDER}}, "mapped library"),
        ({"mapped": {}}, "mapped library"),
        (
            {"torch": "broken", "cuda": None, "problem": "import torch: no libcudart"},
            "mapped library",
        ),
    ],
)
def test_each_comparison_fails_alone(changed: dict[str, Any], check: str) -> None:
    assert failed(facts(**changed)) == [check]


def test_without_torch_the_mapped_library_is_not_applicable_and_never_ok() -> None:
    verdicts = nccl.judge(facts(torch=None, cuda=None, mapped={}), RIGHT)
    assert [status for _, status, _ in verdicts] == ["ok", "ok", "not applicable"]


def test_torch_without_cuda_maps_no_nccl_and_that_is_not_applicable() -> None:
    verdicts = nccl.judge(facts(torch="2.13.0+cpu", cuda=None, mapped={}), RIGHT)
    assert verdicts[2][1] == "not applicable"


def test_a_wrong_version_is_named_with_its_path() -> None:
    text = nccl.judge(facts(mapped={"/opt/other/libnccl.so.2": OLDER}), RIGHT)[2][2]
    assert OLDER in text
    assert "/opt/other/libnccl.so.2" in text


@pytest.mark.parametrize(
    ("number", "text"), [(23203, "2.32.3"), (22809, "2.28.9"), (23200, "2.32.0"), (22907, "2.29.7")]
)
def test_the_library_number_is_written_as_the_lock_writes_it(number: int, text: str) -> None:
    assert nccl.version_text(number) == text


def test_a_header_that_names_no_version_is_not_taken_for_right() -> None:
    assert nccl.header_version("#define NCCL_MAJOR 2\n") == "2.?.?"


class TestInAProcess:
    """The script itself, run on packages laid out as pip lays them out."""

    @pytest.fixture
    def run(self, wheels: Any, tmp_path: Path) -> Any:
        def run(*files: LockedFile) -> tuple[int, dict[str, str], str]:
            site = tmp_path / "site"
            site.mkdir()
            for file in files:
                with zipfile.ZipFile(wheels.find(file)) as archive:
                    archive.extractall(site)
            script = Path(nccl.__file__)
            command = [sys.executable, "-S", str(script), "--expect", RIGHT, "--json"]
            environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site)}
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            answer = json.loads(done.stdout)
            return done.returncode, {v[0]: v[1] for v in answer["verdicts"]}, done.stdout

        return run

    def test_all_three_right(self, run: Any, wheels: Any) -> None:
        code, verdicts, _ = run(wheels.nccl(RIGHT), wheels.torch())
        assert verdicts == {"header": "ok", "distribution": "ok", "mapped library": "ok"}
        assert code == 0

    def test_the_library_that_torch_brings_itself_is_seen(self, run: Any, wheels: Any) -> None:
        code, verdicts, text = run(wheels.nccl(RIGHT), wheels.torch(own_nccl=OLDER))
        assert verdicts == {"header": "ok", "distribution": "ok", "mapped library": "failed"}
        assert "torch/lib/libnccl.so.2" in text
        assert code == nccl.MISMATCH

    def test_an_older_distribution_fails_in_all_three_places(self, run: Any, wheels: Any) -> None:
        code, verdicts, _ = run(wheels.nccl(OLDER), wheels.torch())
        assert set(verdicts.values()) == {"failed"}
        assert code == nccl.MISMATCH

    def test_without_torch_nothing_is_claimed(self, run: Any, wheels: Any) -> None:
        code, verdicts, _ = run(wheels.nccl(RIGHT))
        assert verdicts["mapped library"] == "not applicable"
        assert code == 0


@pytest.mark.docker
class TestInTheImage:
    """The real steps on the stand-in base, with small wheels."""

    @pytest.fixture
    def build(
        self,
        engine: Any,
        standin_image: str,
        small_lock: Lock,
        stand_in_config: Any,
        real_steps: Any,
    ) -> Any:
        def build(*steps: str | Step, **changed: Any) -> list[str]:
            lines: list[str] = []
            ui = Console(as_json=True)
            ui.line = lambda text="", **_: lines.append(text)  # type: ignore[method-assign]
            chosen = [real_steps[step] if isinstance(step, str) else step for step in steps]
            lock = small_lock.model_copy(update=changed)
            build_image(ui, engine, stand_in_config, lock, steps=chosen)
            return lines

        return build

    def test_with_the_locked_nccl_and_no_torch(self, build: Any) -> None:
        lines = [line.strip() for line in build("30-headers", "40-nccl")]
        assert any(
            line.startswith("nccl header: ok: 2.32.3 (/opt/di/include/nccl.h)") for line in lines
        )
        assert "nccl distribution: ok: 2.32.3 (nvidia-nccl-cu13)" in lines
        assert "nccl mapped library: not applicable: no torch in this image" in lines
        assert not any("mapped library: ok" in line for line in lines)

    def test_the_locked_nccl_replaces_the_one_that_torch_brought(
        self, build: Any, make_step: Any, wheels: Any
    ) -> None:
        lines = build(self._base_with_torch(make_step, wheels), "40-nccl")
        assert any("nccl mapped library: ok: 2.32.3" in line for line in lines)

    def test_a_later_pip_step_that_brings_the_older_one_back_stops_the_build(
        self, build: Any, make_step: Any, wheels: Any
    ) -> None:
        with pytest.raises(NcclMismatch) as caught:
            build(
                self._base_with_torch(make_step, wheels),
                "40-nccl",
                "50-requirements",
                python={"cp313": (wheels.nccl(OLDER),)},
            )
        assert "50-requirements" in caught.value.found
        for check in ("header", "distribution", "mapped library"):
            assert f"error: nccl {check} is 2.28.9" in caught.value.found
        assert caught.value.exit_code == 13

    def test_an_older_header_in_the_overlay_stops_the_build(
        self, build: Any, make_step: Any
    ) -> None:
        older = "mkdir -p /opt/di/include; printf '#define NCCL_MAJOR 2\\n#define NCCL_MINOR 28\\n#define NCCL_PATCH 9\\n' > /opt/di/include/nccl.h\n"
        with pytest.raises(NcclMismatch) as caught:
            build(make_step("12-older", older), "40-nccl")
        assert "nccl header is 2.28.9 (/opt/di/include/nccl.h)" in caught.value.found
        assert "distribution is" not in caught.value.found

    def test_a_requirement_that_would_move_torch_is_refused_before_anything_runs(
        self, build: Any, wheels: Any
    ) -> None:
        with pytest.raises(ImageError, match=r"torch 2\.13\.0 under requirements"):
            build("50-requirements", python={"cp313": (wheels.torch(),)})

    def test_a_wheel_that_overwrites_torch_is_noticed(
        self, build: Any, make_step: Any, wheels: Any
    ) -> None:
        trojan = wheels.make("sly", "1.0", {"torch/version.py": "cuda = None\n"})
        with pytest.raises(ImageError, match="pip changed torch"):
            build(
                self._base_with_torch(make_step, wheels),
                "40-nccl",
                "50-requirements",
                python={"cp313": (trojan,)},
            )

    @staticmethod
    def _base_with_torch(make_step: Any, wheels: Any) -> Step:
        """Put on the base what a registry base brings: torch and the older NCCL that it pins."""
        files = [wheels.find(wheels.torch()), wheels.find(wheels.nccl(OLDER))]
        names = " ".join(f"/mnt/lib/{file.name}" for file in files)
        script = f"python3 -m pip install --no-index --no-deps --break-system-packages -q {names}\n"
        step: Step = make_step("12-torch", script, uses=tuple(files))
        return step


@pytest.mark.vendor
def test_the_real_nccl_wheels_are_read_right(tmp_path: Path) -> None:
    from dih20.config import load_mirrors
    from dih20.fetch import cached, fetch_files

    lock = Lock.load()
    files = [lock.nccl(), lock.nccl_for_tests()]
    fetch_files(Console(), files, load_mirrors(), what="NCCL wheels")
    for file in files:
        site = tmp_path / file.version
        with zipfile.ZipFile(cached(file)) as archive:
            archive.extractall(site)
        package = site / "nvidia" / "nccl"
        assert nccl.header_version((package / "include" / "nccl.h").read_text()) == file.version
        assert nccl.library_version(str(package / "lib" / "libnccl.so.2")) == file.version
