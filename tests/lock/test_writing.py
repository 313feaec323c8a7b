"""`inv lock` and `inv lock --check` from end to end, against an index on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dih20.console import Console
from dih20.errors import FetchError, LockError, PinMoved, Unresolved, UsageError
from dih20.lock import Lock
from dih20.lock.checking import check_lock
from dih20.lock.writing import write_lock
from dih20.paths import REPOSITORY
from tests.index.fixtures import StartIndex
from tests.index.local_index import LocalIndex, sdist, wheel

SECTIONS = "wheels,sources,requirements"


def serve_everything(index: LocalIndex) -> None:
    """Put on an index what the configuration below wants."""
    needs = [
        'nvidia-cusparse==12.6.3.3; extra == "cusparse"',
        'nvidia-cuda-nvcc==13.0.88; extra == "nvcc"',
    ]
    index.add(
        "cuda-toolkit",
        "cuda_toolkit-13.0.3-py3-none-any.whl",
        wheel("cuda_toolkit", "13.0.3", needs),
    )
    header = {"nvidia/cu13/include/cusparse.h": b""}
    index.add(
        "nvidia-cusparse",
        "nvidia_cusparse-12.6.3.3-py3-none-any.whl",
        wheel("x", "1", files=header),
    )
    for project, version in (
        ("nvidia-cuda-nvcc", "13.0.88"),
        ("cuobjdump", "1"),
        ("nccl", "2.32.3"),
        ("nccl", "2.28.9"),
    ):
        name = project.replace("-", "_")
        index.add(project, f"{name}-{version}-py3-none-any.whl", wheel(name, version))
    for project, requires in (
        ("setuptools", []),
        ("torch", ["sympy"]),
        ("sympy", []),
        ("einops", ["torch"]),
        ("pytest", []),
    ):
        index.add(project, f"{project}-1.0-py3-none-any.whl", wheel(project, "1.0", requires))
    text = "# upstream\neinops==1.0\ntorch==1.0\n-r more.txt\nflash-attn-4==4.0\n"
    index.add(
        "deepinfer",
        "deepinfer-0.1.0.tar.gz",
        sdist("deepinfer", "0.1.0", {"requirements.txt": text}),
    )


@pytest.fixture
def project(tmp_path: Path, start_index: StartIndex, monkeypatch: pytest.MonkeyPatch) -> LocalIndex:
    """A configuration and an index in force for this test; the lock is written below tmp_path."""
    index = start_index()
    serve_everything(index)
    values = yaml.safe_load((REPOSITORY / "configs/images/di-h20.yaml").read_text())
    values["wheels"] = {
        "cuda_release": "cuda-toolkit==13.0.3",
        "headers": ["nvidia-cusparse"],
        "toolkit": ["nvidia-cuda-nvcc"],
        "inspector": ["cuobjdump"],
        "nccl": "nccl==2.32.3",
        "nccl_for_tests": "nccl==2.28.9",
        "build": ["setuptools"],
        "torch": ["torch==1.0"],
    }
    values["sources"] = {"deepinfer": {"sdist": "deepinfer==0.1.0"}}
    values["requirements"] = {
        "source": "deepinfer",
        "files": ["requirements.txt"],
        "without": ["torch", "flash-attn-4"],
        "also": ["pytest"],
    }
    write_configs(tmp_path, values, index)
    monkeypatch.setenv("DI_CONFIGS", str(tmp_path / "configs"))
    monkeypatch.setenv("DI_LOCK", str(tmp_path / "di.lock.yaml"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    return index


def write_configs(tmp_path: Path, values: dict[str, Any], index: LocalIndex) -> None:
    folder = tmp_path / "configs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "di-h20.yaml").write_text(yaml.safe_dump(values))
    mirrors = {"pip": {"indexes": [index.url]}, "timeout_s": 5, "retries": 0}
    (folder.parent / "mirrors.yaml").write_text(yaml.safe_dump(mirrors))


def make(
    ui: Console,
    only: str = SECTIONS,
    *,
    base: str = "",
    only_plan: bool = False,
    upgrade: bool | str = False,
) -> dict[str, Any]:
    how: dict[str, Any] = {"base": base, "only_plan": only_plan, "upgrade": upgrade}
    return write_lock(ui, only=only, image_name="di-h20", **how)


def check(ui: Console, only: str = SECTIONS, *, offline: bool = False) -> dict[str, Any]:
    return check_lock(ui, only=only, image_name="di-h20", offline=offline)


def change_wants(tmp_path: Path, index: LocalIndex, **wheels: Any) -> None:
    values = yaml.safe_load((tmp_path / "configs/images/di-h20.yaml").read_text())
    values["wheels"] |= wheels
    write_configs(tmp_path, values, index)


@pytest.mark.usefixtures("project")
class TestWrite:
    def test_every_section_is_resolved_from_the_index_alone(self, ui: Console) -> None:
        make(ui)
        lock = Lock.load()
        assert [str(f) for f in lock.header_wheels()] == ["nvidia-cusparse 12.6.3.3"]
        assert [str(f) for f in lock.toolkit_wheels()] == ["nvidia-cuda-nvcc 13.0.88"]
        assert (lock.nccl().version, lock.nccl_for_tests().version) == ("2.32.3", "2.28.9")
        for tag in ("cp312", "cp313"):
            assert [f.name for f in lock.requirements(tag)] == ["einops", "pytest"]
        assert [f.name for f in lock.torch_wheels("cp313")] == ["sympy", "torch"]
        assert [str(f) for f in lock.sources()] == ["deepinfer 0.1.0"]

    def test_a_second_run_changes_no_byte(self, ui: Console, tmp_path: Path) -> None:
        make(ui)
        before = (tmp_path / "di.lock.yaml").read_bytes()
        assert make(ui)["changed"] is False
        assert (tmp_path / "di.lock.yaml").read_bytes() == before

    def test_a_plan_says_what_would_be_resolved_and_writes_nothing(
        self, ui: Console, tmp_path: Path
    ) -> None:
        plan = make(ui, only_plan=True)
        assert [a["target"] for a in plan["actions"]][:3] == ["wheels", "sources", "requirements"]
        assert plan["actions"][0]["why"] == "never resolved"
        assert not (tmp_path / "di.lock.yaml").exists()

    def test_an_unreachable_registry_leaves_the_digest_unresolved_and_is_an_error_when_asked_for(
        self, ui: Console
    ) -> None:
        make(ui)
        with pytest.raises(Unresolved) as fault:
            make(ui, "base", base="vllm")
        assert "no Docker engine to ask through" in fault.value.found
        assert Lock.load().base("vllm").digest == "unresolved"

    def test_a_section_that_does_not_exist_is_a_usage_error(self, ui: Console) -> None:
        with pytest.raises(UsageError, match="--only: no wheel in the lock"):
            make(ui, "wheel")

    def test_when_one_section_fails_the_lock_stays_as_it_was(
        self, ui: Console, tmp_path: Path, project: LocalIndex
    ) -> None:
        make(ui)
        before = (tmp_path / "di.lock.yaml").read_bytes()
        project.add("nccl", "nccl-2.33.0-py3-none-any.whl", wheel("nccl", "2.33.0"))
        change_wants(tmp_path, project, nccl="nccl==2.33.0")
        del project.projects["pytest"]
        with pytest.raises(LockError, match="no index has the project 'pytest'"):
            make(ui, upgrade=True)
        assert (tmp_path / "di.lock.yaml").read_bytes() == before


class TestCheck:
    def test_nothing_moved(self, ui: Console, project: LocalIndex) -> None:
        make(ui)
        result = check(ui)
        assert result["unresolved"] == []

    def test_a_changed_want_names_the_stale_section_and_the_command(
        self, ui: Console, project: LocalIndex, tmp_path: Path
    ) -> None:
        make(ui)
        change_wants(tmp_path, project, build=["setuptools", "wheel"])
        with pytest.raises(LockError) as fault:
            check(ui, offline=True)
        assert fault.value.found == "stale: wheels"
        assert "./inv lock --only wheels" in fault.value.remedy

    def test_a_changed_package_list_makes_the_base_and_apt_stale(
        self, ui: Console, project: LocalIndex, tmp_path: Path
    ) -> None:
        make(ui)
        with pytest.raises(
            LockError, match="stale: base stand-in, base vllm, apt stand-in, apt vllm"
        ):
            check(ui, "base,apt", offline=True)

    def test_a_file_that_was_replaced_at_the_index_is_a_moved_pin(
        self, ui: Console, project: LocalIndex
    ) -> None:
        make(ui)
        before = project.projects["nccl"]["nccl-2.32.3-py3-none-any.whl"].sha256
        after = project.add("nccl", "nccl-2.32.3-py3-none-any.whl", b"other content").sha256
        with pytest.raises(PinMoved) as fault:
            check(ui)
        assert (
            f"nccl-2.32.3-py3-none-any.whl: lock says {before}, index {project.url} now {after}"
            in fault.value.found
        )

    def test_a_file_that_is_gone_from_the_index_is_named(
        self, ui: Console, project: LocalIndex
    ) -> None:
        make(ui)
        del project.projects["einops"]
        with pytest.raises(FetchError, match="is at none of the indexes"):
            check(ui)

    def test_an_edit_by_hand_is_noticed(
        self, ui: Console, project: LocalIndex, tmp_path: Path
    ) -> None:
        make(ui)
        path = tmp_path / "di.lock.yaml"
        path.write_text(path.read_text().replace("format: 1", "format:   1"))
        with pytest.raises(LockError, match="not in canonical form"):
            check(ui, offline=True)

    def test_the_task_prints_one_json_object_and_exits_with_the_error_s_code(
        self, ui: Console, project: LocalIndex, tmp_path: Path
    ) -> None:
        make(ui)
        change_wants(tmp_path, project, build=["setuptools", "wheel"])
        command = [sys.executable, "-m", "invoke", "--search-root", str(REPOSITORY)]
        command += ["lock", "--check", "--offline", "--only", "wheels", "--json"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ}
        )
        assert done.returncode == 4
        said = json.loads(done.stdout)
        assert (said["ok"], said["error"]["kind"]) == (False, "LockError")
        assert "Traceback" not in done.stderr
