"""The CI image: made from its own part of the lock; a job inside sees the working tree and no network."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dih20.ci.checkout import listed_files, write_checkout
from dih20.ci.ended import Ended
from dih20.ci.image import build_with, ci_lock, inputs
from dih20.ci.in_image import CHECKOUT, run_commands
from dih20.console import Console
from dih20.errors import ConfigError, EngineError, FetchError, LockError, UsageError
from dih20.image.steps import load_steps
from dih20.lock import Lock
from dih20.lock.ci_pins import read_requirements
from dih20.paths import REPOSITORY
from tests.signalled import signalled

STEPS = load_steps(REPOSITORY / "images/ci")


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_step_of_the_ci_image_is_shell_that_stops_at_a_fault_and_downloads_nothing(
    step: Any,
) -> None:
    text = step.script.read_text()
    subprocess.run(["sh", "-n", str(step.script)], check=True)
    assert "set -eu" in text.splitlines()
    for word in ("curl", "wget", "http://", "https://", "apt-get", "pip install"):
        assert word not in text
    called = {
        word.removeprefix("/mnt/lib/").lstrip("<")
        for word in text.replace("</mnt", "/mnt").split()
        if word.startswith("/mnt/lib/")
    }
    assert called == {path.name for path in step.uses}


def test_the_image_s_lock_is_its_own_part_and_no_other_pin_moves_it() -> None:
    lock = Lock.load()
    config, own, _ = inputs()
    assert (config.name, config.base) == ("di-ci", "stand-in")
    assert own.debs("stand-in") == list(lock.ci_image().debs)
    assert own.requirements("cp313") == list(lock.ci_image().wheels)
    other = lock.model_copy(update={"apt": {}, "python": {}, "image": "di-h20"})
    assert ci_lock(other, "di-ci").identity == own.identity


@pytest.mark.docker
def test_files_that_were_not_fetched_lead_to_the_group_that_has_them(
    ui: Console, engine: Any, standin_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(file: Any) -> Path:
        raise FetchError(found=f"{file.filename} is not there", expected="x", remedy="y")

    monkeypatch.setattr("dih20.image.inputs.cached", missing)
    with pytest.raises(FetchError, match="is not there") as caught:
        build_with(ui, engine)
    assert "./inv fetch --only ci" in caught.value.remedy


def test_packages_of_another_base_are_refused() -> None:
    lock = Lock.load()
    base = lock.base("stand-in").model_copy(update={"digest": f"sha256:{7:064x}"})
    moved = lock.model_copy(update={"bases": {**lock.bases, "stand-in": base}})
    with pytest.raises(LockError, match="were locked on base") as caught:
        ci_lock(moved, "di-ci")
    assert "./inv lock --only ci" in caught.value.remedy


def test_every_locked_wheel_is_one_that_the_requirement_locks_accept() -> None:
    accepted: dict[str, frozenset[str]] = {}
    for name in ("base", "dev"):
        text = (REPOSITORY / f"requirements/{name}.lock").read_text()
        for requirement, hashes in read_requirements(text):
            accepted[requirement.name] = accepted.get(requirement.name, frozenset()) | hashes
    wheels = {file.name: file for file in Lock.load().ci_image().wheels}
    assert {name for name, file in wheels.items() if file.sha256 not in accepted[name]} == set()
    assert {"invoke", "pydantic", "ruff", "mypy", "pytest"} <= set(wheels)
    assert "torch" not in wheels


def test_a_requirement_lock_gives_names_markers_and_hashes() -> None:
    text = f"""\
# a comment
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
ruff==0.17.6 \\
    --hash=sha256:{"c" * 64}
"""
    found = {str(r): hashes for r, hashes in read_requirements(text)}
    assert found == {
        'colorama==0.4.6; sys_platform == "win32"': {"a" * 64, "b" * 64},
        "ruff==0.17.6": {"c" * 64},
    }


def repository(folder: Path) -> Path:
    """Give a small git checkout: a tracked file, a new one, a link, a deleted one, an ignored one."""
    for name, text in (
        ("kept.txt", "kept"),
        ("gone.txt", "gone"),
        (".gitignore", "ignored.txt\n"),
        ("deep/inner.sh", "echo inner"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "link").symlink_to("kept.txt")
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    (folder / "gone.txt").unlink()
    (folder / "new.txt").write_text("new")
    (folder / "ignored.txt").write_text("secret")
    return folder


def test_a_checkout_holds_what_a_clone_would_and_the_changes_that_are_not_committed(
    tmp_path: Path,
) -> None:
    root = repository(tmp_path)
    expected = [".gitignore", "deep/inner.sh", "kept.txt", "link", "new.txt"]
    assert listed_files(root) == expected
    tar = io.BytesIO()
    assert write_checkout(root, tar, prefix="ci/checkout") == 5
    tar.seek(0)
    with tarfile.open(fileobj=tar) as archive:
        members = {m.name: m for m in archive.getmembers()}
    assert list(members) == [f"ci/checkout/{name}" for name in expected]
    assert members["ci/checkout/link"].linkname == "kept.txt"
    assert {(m.uid, m.uname) for m in members.values()} == {(0, "root")}


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="git cannot list"):
        listed_files(tmp_path)


@pytest.mark.docker
class TestJobInAnImage:
    @pytest.fixture
    def image(self, engine: Any, standin_image: str, tmp_path: Path) -> str:
        """The stand-in with a `git` that does nothing: what a job needs, without the CI image's minutes."""
        container = engine.containers.create(standin_image, ["true"], network_mode="none")
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as archive:
            entry = tarfile.TarInfo("usr/local/bin/git")
            script = b"#!/bin/sh\nexit 0\n"
            entry.size, entry.mode = len(script), 0o755
            archive.addfile(entry, io.BytesIO(script))
        container.put_archive("/", tar.getvalue())
        made = str(container.commit().id)
        container.remove()
        return made

    @pytest.fixture
    def job(
        self, ui: Console, engine: Any, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Any:
        """Run shell lines as a job; gives (how it ended, log)."""
        root = repository(tmp_path / "repository")
        monkeypatch.setattr("dih20.ci.in_image.REPOSITORY", root)
        log = tmp_path / "job.log"

        def run(*lines: str, limit_s: float = 60) -> tuple[Ended, str]:
            commands = [["sh", "-c", line] for line in lines]
            ended = run_commands(ui, engine, image, commands, log=log, limit_s=limit_s)
            return ended, log.read_text()

        return run

    def test_it_sees_the_working_tree_as_root_without_network(self, job: Any) -> None:
        ended, log = job(
            "pwd; cat deep/inner.sh new.txt link; ls", "ls /sys/class/net; id -u; echo CI=$CI"
        )
        assert ended == Ended(exit_code=0)
        assert log.splitlines()[0] == CHECKOUT
        assert "echo innernewkept" in log
        assert "ignored.txt" not in log
        assert log.splitlines()[-3:] == ["lo", "0", "CI=true"]

    def test_the_first_command_that_fails_ends_it_and_nothing_is_left(
        self, job: Any, engine: Any
    ) -> None:
        before = len(engine.containers.list(all=True))
        ended, log = job("echo one", "exit 7", "echo never")
        assert (ended, log.splitlines()) == (Ended(exit_code=7), ["one"])
        assert len(engine.containers.list(all=True)) == before

    def test_it_is_ended_at_its_deadline(self, job: Any, engine: Any) -> None:
        before = len(engine.containers.list(all=True))
        ended, log = job("echo waiting; sleep 600", limit_s=2)
        assert ended.is_overdue
        assert log in ("", "waiting\n"), (
            "a busy machine may not come to the first line in that time"
        )
        assert len(engine.containers.list(all=True)) == before

    def test_it_leaves_nothing_when_it_is_told_to_end(self, job: Any, engine: Any) -> None:
        before = {one.id for one in engine.containers.list(all=True)}
        with (
            signalled(lambda: {one.id for one in engine.containers.list(sparse=True)} - before),
            pytest.raises(KeyboardInterrupt),
        ):
            job("sleep 600", limit_s=30)
        assert {one.id for one in engine.containers.list(all=True)} == before

    def test_an_image_that_is_not_there_leads_to_the_task_that_makes_it(
        self, ui: Console, engine: Any, tmp_path: Path
    ) -> None:
        with pytest.raises(EngineError) as caught:
            run_commands(ui, engine, "di-ci:none", [], log=tmp_path / "log", limit_s=1)
        assert "./inv ci-image" in caught.value.remedy


@pytest.mark.vendor
@pytest.mark.docker
def test_the_whole_image_is_built_twice_to_one_id_and_lints_this_tree_without_network(
    ui: Console, engine: Any, second_engine: Any, standin_image: str, tmp_path: Path
) -> None:
    from dih20.config import load_mirrors
    from dih20.fetch import fetch_files

    fetch_files(ui, Lock.load().ci_files(), load_mirrors(), what="files of the CI image")
    images = [build_with(ui, client) for client in (engine, second_engine)]
    assert images[0].id == images[1].id
    command = [["./inv", "lint"]]
    log = tmp_path / "lint.log"
    assert run_commands(ui, engine, images[0].id, command, log=log, limit_s=1200).exit_code == 0
    assert "setting up" not in log.read_text(), "the environment of the image was not taken"


def test_a_step_that_uses_a_requirement_lock_gets_it(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps/10-a.sh").write_text("true\n")
    (tmp_path / "image.yaml").write_text("steps:\n  - {name: 10-a, uses: [base.lock]}\n")
    (step,) = load_steps(tmp_path)
    content = (REPOSITORY / "requirements/base.lock").read_bytes()
    assert step.own_hashes()["base.lock"] == hashlib.sha256(content).hexdigest()
    (tmp_path / "image.yaml").write_text("steps:\n  - {name: 10-a, uses: [nothing.lock]}\n")
    with pytest.raises(ConfigError, match=r"nothing\.lock"):
        load_steps(tmp_path)
