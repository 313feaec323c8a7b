"""What `inv doctor` says about configuration, lock and downloads, without asking the network."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dih20.doctor import registry
from dih20.doctor.registry import Finding, Subject, run_checks
from dih20.hosts.runner import LocalRunner
from dih20.paths import REPOSITORY


@pytest.fixture(autouse=True)
def own_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of the committed configuration and lock, which a test may damage."""
    shutil.copytree(REPOSITORY / "configs", tmp_path / "configs")
    shutil.copy(REPOSITORY / "di.lock.yaml", tmp_path / "di.lock.yaml")
    monkeypatch.setenv("DI_CONFIGS", str(tmp_path / "configs"))
    monkeypatch.setenv("DI_LOCK", str(tmp_path / "di.lock.yaml"))
    return tmp_path


def findings(name: str) -> list[Finding]:
    """Run one check as `inv doctor` runs it, and none of the others."""
    registry.discover()
    (entry,) = [check for check in registry.registered("local") if check.name == name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "registered", lambda where: [entry])
        return [found for _, found in run_checks(Subject(runner=LocalRunner()), "local")]


def test_a_sound_configuration_is_counted() -> None:
    assert findings("configuration")[0].found == "1 hosts, 1 images, engine, mirrors"


def test_a_broken_host_file_fails_with_its_line(own_copies: Path) -> None:
    (own_copies / "configs/hosts/other.yaml").write_text("name: other\ngpu: 8\n")
    (finding,) = findings("configuration")
    assert finding.status == "fail"
    assert "other.yaml:2: unknown key 'gpu': did you mean 'gpus'?" in finding.found


def test_a_lock_that_does_not_answer_the_configuration_fails(own_copies: Path) -> None:
    image = own_copies / "configs/images/di-h20.yaml"
    image.write_text(image.read_text().replace("apt: [git, ", "apt: [git, rsync, "))
    (finding,) = findings("lock")
    assert (finding.status, finding.found) == ("fail", "stale: apt stand-in, apt vllm")


def test_what_was_never_resolved_is_a_warning_with_its_command() -> None:
    warnings = [f for f in findings("lock") if f.status == "warn"]
    assert all("./inv lock --only" in f.remedy for f in warnings)


def test_downloads_that_are_missing_are_counted_with_their_size() -> None:
    warning = next(f for f in findings("downloads") if f.status == "warn")
    assert "0 of " in warning.found
    assert "MB to fetch" in warning.found
    assert warning.remedy == "./inv fetch --base stand-in"
