"""Copy files to and from a host over SSH: streamed, resumed, verified, moved into place at the end.

The bytes go to a name that carries the file's sha256, so a transfer that broke off is taken up where
it ended, and a half-made file never has the name that others look for.
"""

from __future__ import annotations

import hashlib
import posixpath
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko

from dih20.console import Console
from dih20.errors import HostError

if TYPE_CHECKING:
    from dih20.hosts.ssh import SshRunner

_READ_BYTES = 1 << 20
_HASH_TIMEOUT_S = 1800.0


def put(runner: SshRunner, local: Path, remote: str, ui: Console, sha256: str = "") -> None:
    """Copy a local file; returns when the host's own sha256 of it is the local one."""
    wanted = sha256 or sha256_of(local)
    size = local.stat().st_size
    partial = f"{remote}.{wanted[:16]}.part"
    sftp = runner.sftp()
    try:
        runner.run(["mkdir", "-p", "--", posixpath.dirname(remote)])
        if _size(sftp, remote, size) == size and remote_sha256(runner, remote) == wanted:
            return
        for _ in range(2):  # a second time from the start when what lay there was not a prefix
            offset = _size(sftp, partial, size)
            with ui.progress(f"{local.name} to {runner.name}", total=size) as advance:
                advance(offset)
                upload(runner, local, partial, offset, advance)
            if remote_sha256(runner, partial) == wanted:
                sftp.posix_rename(partial, remote)
                return
            sftp.remove(partial)
    except OSError as fault:
        raise _failed(runner, remote, fault) from fault
    finally:
        sftp.close()
    raise HostError(
        found=f"{remote} on {runner.name} has another sha256 than {local} after two transfers",
        expected=f"sha256 {wanted} on both sides",
        remedy="see that nobody writes to the file; check disk and memory of the host; then repeat",
    )


def get(runner: SshRunner, remote: str, local: Path, ui: Console) -> None:
    """Copy a file from a host; returns when it is whole and verified here."""
    wanted = remote_sha256(runner, remote)
    partial = local.with_name(f"{local.name}.{wanted[:16]}.part")
    sftp = runner.sftp()
    try:
        local.parent.mkdir(parents=True, exist_ok=True)
        size = sftp.stat(remote).st_size or 0
        with ui.progress(f"{local.name} from {runner.name}", total=size) as advance:
            last = 0

            def moved(so_far: int, _total: int) -> None:
                nonlocal last
                advance(so_far - last)
                last = so_far

            sftp.get(remote, str(partial), callback=moved)
    except OSError as fault:
        raise _failed(runner, remote, fault) from fault
    finally:
        sftp.close()
    found = sha256_of(partial)
    if found != wanted:
        partial.unlink()
        raise HostError(
            found=f"{remote} of {runner.name} arrived with sha256 {found}",
            expected=f"{wanted}, as the host reads it",
            remedy="see that nobody writes to the file, then repeat",
        )
    partial.replace(local)


def sha256_of(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def remote_sha256(runner: SshRunner, path: str) -> str:
    """Give the sha256 of a file as the host itself reads it."""
    return (
        runner.run(["sha256sum", "--", path], timeout_s=_HASH_TIMEOUT_S)
        .text.split()[0]
        .lstrip("\\")
    )


def _size(sftp: paramiko.SFTPClient, path: str, most: int) -> int:
    try:
        size = sftp.stat(path).st_size or 0
    except FileNotFoundError:
        return 0
    return size if size <= most else 0


def upload(
    runner: SshRunner,
    local: Path,
    partial: str,
    offset: int,
    advance: Callable[[float], None],
) -> None:
    """Append the file's bytes from `offset` on to what lies on the host; offset 0 starts anew.

    One stream through a channel: SFTP asks for an answer to every 32 KiB, and paramiko spends a
    third of its time on those. Raises OSError with the host's own words when it cannot write.
    """
    script = 'exec cat >> "$1"' if offset else 'exec cat > "$1"'
    with runner.session() as channel, local.open("rb") as source:
        channel.exec_command(shlex.join(["sh", "-c", script, "sh", partial]))
        source.seek(offset)
        try:
            while block := source.read(_READ_BYTES):
                channel.sendall(block)
                advance(len(block))
            channel.shutdown_write()
        except OSError:
            pass  # the host closed its end; its exit code and words say why
        words = channel.makefile_stderr("rb").read().decode(errors="replace").strip()
        code = channel.recv_exit_status()
    if code != 0:
        raise OSError(code, words or f"the host stopped reading (exit code {code})")


def _failed(runner: SshRunner, remote: str, fault: OSError) -> HostError:
    return HostError(
        found=f"{remote} on {runner.name}: {fault.strerror or fault}",
        expected="room and the right to write there",
        remedy=f"on the host see `df {posixpath.dirname(remote)}` and who owns it; then repeat, "
        "the transfer goes on where it ended",
    )
