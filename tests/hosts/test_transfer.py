"""Files to and from a host: verified, resumed, and never half there under their own name."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import HostError
from dih20.hosts import transfer
from dih20.hosts.ssh import SshRunner, connect
from dih20.rehearse.sshd import PrivateSshd
from tests.hosts.places import host_for

pytestmark = pytest.mark.ssh


@pytest.fixture
def runner(sshd: PrivateSshd) -> Iterator[SshRunner]:
    with connect(host_for(sshd)) as connection:
        yield connection


@pytest.fixture
def local(tmp_path: Path) -> Path:
    path = tmp_path / "local.bin"
    path.write_bytes(os.urandom((3 << 20) + 17))
    return path


def test_a_file_arrives_whole_in_a_folder_that_was_not_there(
    runner: SshRunner, local: Path, tmp_path: Path, ui: Console
) -> None:
    remote = tmp_path / "new" / "folder" / "it's here.bin"
    runner.put(local, str(remote), ui)
    assert remote.read_bytes() == local.read_bytes()
    assert [p.name for p in remote.parent.iterdir()] == [remote.name]


def test_a_transfer_that_broke_off_is_taken_up_where_it_ended(
    runner: SshRunner, local: Path, tmp_path: Path, ui: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = tmp_path / "remote.bin"
    partial = tmp_path / f"remote.bin.{transfer.sha256_of(local)[:16]}.part"
    partial.write_bytes(local.read_bytes()[: 2 << 20])
    sent: list[int] = []
    upload = transfer.upload

    def counted(to: SshRunner, source: Path, name: str, offset: int, advance: Any) -> None:
        upload(to, source, name, offset, lambda amount: sent.append(int(amount)))

    monkeypatch.setattr(transfer, "upload", counted)
    runner.put(local, str(remote), ui)
    assert remote.read_bytes() == local.read_bytes()
    assert sum(sent) == local.stat().st_size - (2 << 20)


def test_a_broken_beginning_is_noticed_and_sent_again(
    runner: SshRunner, local: Path, tmp_path: Path, ui: Console
) -> None:
    remote = tmp_path / "remote.bin"
    (tmp_path / f"remote.bin.{transfer.sha256_of(local)[:16]}.part").write_bytes(b"x" * (2 << 20))
    runner.put(local, str(remote), ui)
    assert remote.read_bytes() == local.read_bytes()


def test_a_file_that_changes_on_the_way_never_gets_its_name(
    runner: SshRunner, local: Path, tmp_path: Path, ui: Console
) -> None:
    remote = tmp_path / "remote.bin"
    with pytest.raises(HostError, match="another sha256"):
        runner.put(local, str(remote), ui, sha256="0" * 64)
    assert list(tmp_path.iterdir()) == [local]


def test_a_place_that_cannot_be_written_to_is_named(
    runner: SshRunner, local: Path, tmp_path: Path, ui: Console
) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(HostError, match="taken"):
        runner.put(local, str(tmp_path / "taken"), ui)


def test_a_full_disk_is_said_in_the_hosts_own_words(runner: SshRunner, local: Path) -> None:
    with pytest.raises(OSError, match="No space left on device"):
        transfer.upload(runner, local, "/dev/full", 0, lambda amount: None)


def test_a_file_comes_back_verified(
    runner: SshRunner, local: Path, tmp_path: Path, ui: Console
) -> None:
    back = tmp_path / "back" / "copy.bin"
    runner.get(str(local), back, ui)
    assert back.read_bytes() == local.read_bytes()
    assert [p.name for p in back.parent.iterdir()] == ["copy.bin"]


def test_a_stream_of_ours_costs_no_more_than_twice_what_scp_does(
    runner: SshRunner, sshd: PrivateSshd, tmp_path: Path
) -> None:
    """In processor time, which a machine that others use too leaves nearly as it is; one try is mostly enough."""
    big = tmp_path / "big.bin"
    big.write_bytes(os.urandom(64 << 20))
    scp = ["scp", "-q", "-P", str(sshd.port), "-i", str(sshd.identity_file)]
    scp += ["-o", f"UserKnownHostsFile={sshd.known_hosts}", "-o", "IdentitiesOnly=yes", str(big)]
    ratios = []
    for _ in range(3):
        before = _children_s()
        subprocess.run([*scp, f"{sshd.user}@127.0.0.1:{tmp_path}/scp.bin"], check=True)
        by_scp = _children_s() - before
        started = time.process_time()
        transfer.upload(runner, big, f"{tmp_path}/ours.bin", 0, lambda amount: None)
        ratios.append((time.process_time() - started) / by_scp)
        if ratios[-1] <= 2:
            break
    assert min(ratios) <= 2, f"processor time against scp's: {ratios}"


def _children_s() -> float:
    """Give the processor time of children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_file_that_is_there_already_is_not_sent_again(
    runner: SshRunner, local: Path, tmp_path: Path, ui: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = tmp_path / "remote.bin"
    runner.put(local, str(remote), ui)
    monkeypatch.setattr(transfer, "upload", lambda *args: pytest.fail("sent again"))
    runner.put(local, str(remote), ui)
