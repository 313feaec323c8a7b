"""Package groups: what is installed, when, and what is said when it cannot be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dih20 import groups
from dih20.console import Console
from dih20.errors import FetchError, UsageError
from dih20.paths import REPOSITORY

LOCKS = sorted((REPOSITORY / "requirements").glob("*.lock"))


class Pip:
    """Stands in for pip: remembers the calls, answers as told."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.exit_code = 0
        self.stderr = ""

    def __call__(self, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        self.calls.append(command)
        return subprocess.CompletedProcess(command, self.exit_code, "", self.stderr)

    @property
    def locks(self) -> list[str]:
        return [Path(call[-1]).name for call in self.calls]


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    fake = Pip()
    monkeypatch.setattr("dih20.groups.subprocess.run", fake)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return fake


def test_a_group_is_installed_once(pip: Pip, ui: Console) -> None:
    groups.ensure(ui, "dev")
    groups.ensure(ui, "dev")
    assert pip.locks == ["dev.lock"]
    assert "--require-hashes" in pip.calls[0]
    assert "--no-deps" not in pip.calls[0]


def test_a_changed_lock_is_installed_again(pip: Pip, ui: Console, tmp_path: Path) -> None:
    groups.ensure(ui, "dev")
    (tmp_path / ".lock-stamp-dev").write_text("the hash of an older lock")
    groups.ensure(ui, "dev")
    assert pip.locks == ["dev.lock", "dev.lock"]


def test_a_local_build_of_torch_is_tried_before_the_index(
    pip: Pip, ui: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_torch_is_cuda_build", lambda: False)
    groups.ensure(ui, "torch")
    assert pip.locks == ["torch-local.lock", "torch.lock"]
    assert "--no-index" in pip.calls[0]
    assert "--no-index" not in pip.calls[1]
    assert all("--no-deps" in call and "--require-hashes" in call for call in pip.calls)


def test_a_cuda_build_of_torch_brings_its_runtime(
    pip: Pip, ui: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_torch_is_cuda_build", lambda: True)
    groups.ensure(ui, "torch")
    assert pip.locks[-1] == "torch-cuda.lock"


def test_when_pip_fails_its_own_error_lines_are_shown_and_nothing_is_stamped(
    pip: Pip, ui: Console, tmp_path: Path
) -> None:
    pip.exit_code, pip.stderr = 1, "Collecting ruff\nERROR: no file with a listed hash\n"
    with pytest.raises(FetchError, match="ERROR: no file with a listed hash"):
        groups.ensure(ui, "dev")
    assert not (tmp_path / ".lock-stamp-dev").exists()
    pip.exit_code = 0
    groups.ensure(ui, "dev")
    assert pip.locks == ["dev.lock", "dev.lock"]


def test_an_unknown_group_and_a_python_without_environment_are_refused(
    ui: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="no package group 'cuda'"):
        groups.ensure(ui, "cuda")
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.delenv("DI_PYTHON", raising=False)
    with pytest.raises(UsageError, match="not a virtual environment"):
        groups.ensure(ui, "dev")


def lock_faults(text: str) -> list[str]:
    """Say which entries of a lock are not a pinned version with a hash; an address is one more fault."""
    faults = ["it holds an address"] if "://" in text else []
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip())
    for entry in entries:
        if not re.fullmatch(
            r"[a-z0-9-]+==\S+( ; [^\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+", entry
        ):
            faults.append(f"not a pinned version with its hashes: {entry.splitlines()[0]}")
    return faults


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_lock_pins_versions_and_hashes_and_holds_no_address(lock: Path) -> None:
    assert lock_faults(lock.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "rich>=1",
        "rich==1",
        "rich==1 \\\n    --hash=sha256:00",
        "rich @ https://x/y \\\n    --hash=x",
    ],
)
def test_a_loose_lock_is_noticed(text: str) -> None:
    assert lock_faults(text) != []


def test_one_environment_can_hold_all_groups() -> None:
    versions: dict[str, set[str]] = {}
    for lock in LOCKS:
        for name, version in re.findall(
            r"^([a-z0-9-]+)==(\S+)", lock.read_text(), flags=re.MULTILINE
        ):
            versions.setdefault(name, set()).add(version)
    assert len(versions) > 60
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_a_local_build_of_torch_is_one_of_the_accepted_files() -> None:
    def entry(lock: str) -> tuple[str, set[str]]:
        text = (REPOSITORY / "requirements" / lock).read_text()
        block = re.search(r"^torch==(\S+)((?: \\\n    --hash=\S+)+)", text, flags=re.MULTILINE)
        assert block is not None
        return block[1], set(re.findall(r"sha256:\w+", block[2]))

    version, accepted = entry("torch.lock")
    local_version, local = entry("torch-local.lock")
    assert local_version == version
    assert local < accepted
