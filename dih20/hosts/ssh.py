"""Commands, files and a Docker client on one host, all over one verified SSH connection.

with connect(load_host("nv-h20")) as host:
    host.run(["uname", "-r"]).text
    host.put(Path("wheel.whl"), "/data/di/wheel.whl", ui)
    host.docker().containers.list()
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko

from dih20.console import Console
from dih20.errors import CommandFailed, ConnectFailed, HostError
from dih20.hosts.exchange import Kept, OutputTooLong, converse
from dih20.hosts.runner import Result, checked
from dih20.hosts.ssh_target import SshTarget, resolve
from dih20.hosts.transport import close_transport, open_transport

if TYPE_CHECKING:
    import docker

    from dih20.config import HostConfig

KEPT_BYTES = 64 << 20
# sshd allows 10 sessions on a connection unless told otherwise; one is left for the person's own.
SESSIONS = 9
_SESSION_TIMEOUT_S = 60.0
_FREED_WITHIN_S = 5.0


@contextmanager
def connect(host: HostConfig, *, accept_host_key: str = "") -> Iterator[SshRunner]:
    """Give a runner on a host; everything done with it shares one connection, closed at the end.

    Args:
        accept_host_key: a SHA256 fingerprint a person confirmed, for a host not in known_hosts yet.
    """
    target = resolve(host)
    transport = open_transport(target, accept_host_key=accept_host_key)
    with ExitStack() as ends:
        ends.callback(close_transport, transport)
        yield SshRunner(target, transport, host, ends)


class SshRunner:
    """Run commands on a host; safe to use from several threads."""

    def __init__(
        self, target: SshTarget, transport: paramiko.Transport, host: HostConfig, ends: ExitStack
    ) -> None:
        self.name = target.name
        self.target = target
        self.host = host
        self._transport = transport
        self._ends = ends
        self._sessions = threading.BoundedSemaphore(SESSIONS)
        self._client: docker.DockerClient | None = None

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> Result:
        """Run a command to its end and keep both streams, up to KEPT_BYTES each."""
        started = time.monotonic()
        stdout, stderr = Kept(KEPT_BYTES), Kept(KEPT_BYTES)
        with self.session() as channel:
            channel.exec_command(command_line(argv, env))
            try:
                code = converse(
                    channel, stdin=stdin or b"", stdout=stdout, stderr=stderr, timeout_s=timeout_s
                )
            except TimeoutError as late:
                raise self._still_running(argv, timeout_s) from late
            except OutputTooLong as flood:
                raise self._too_long(argv, flood.limit_bytes) from flood
        if code is None:
            raise self._broken_off(argv)
        result = Result(
            argv=tuple(argv),
            exit_code=code,
            stdout=stdout.data,
            stderr=stderr.data,
            seconds=time.monotonic() - started,
        )
        return checked(result, self.name) if check else result

    @contextmanager
    def session(self) -> Iterator[paramiko.Channel]:
        """Give a fresh channel of the shared connection, and take part in sshd's MaxSessions."""
        if not self._sessions.acquire(timeout=_SESSION_TIMEOUT_S):
            raise HostError(
                found=f"all {SESSIONS} sessions of the connection to {self.name} were busy for "
                f"{_SESSION_TIMEOUT_S:.0f} s",
                expected="one that ends",
                remedy="see with `ps` on the host what hangs, then repeat",
            )
        try:
            channel = self._open_session()
            try:
                yield channel
            finally:
                channel.close()
        finally:
            self._sessions.release()

    def _open_session(self) -> paramiko.Channel:
        """Give a new session; sshd frees one only when it has reaped its process, which may take a moment."""
        deadline = time.monotonic() + _FREED_WITHIN_S
        while True:
            try:
                return self._transport.open_session(timeout=_SESSION_TIMEOUT_S)
            except (paramiko.SSHException, EOFError, OSError) as fault:
                if not self._is_refusal(fault):
                    raise self._lost() from fault
                if time.monotonic() > deadline:
                    raise HostError(
                        found=f"{self.name} refused another session on this connection: {fault}",
                        expected=f"{SESSIONS + 1} sessions per connection (MaxSessions of its sshd)",
                        remedy="raise MaxSessions in the host's sshd_config, then repeat",
                    ) from fault
                time.sleep(0.05)

    def _is_refusal(self, fault: Exception) -> bool:
        """Tell a refused session from a lost connection.

        The library keeps one exception for a connection: where two threads are refused at once, one of
        them gets it and the other an error without a reason.
        """
        if isinstance(fault, paramiko.ChannelException):
            return True
        return str(fault) == "Unable to open channel." and self._transport.is_active()

    def tcp(self, host: str, port: int, *, timeout_s: float) -> paramiko.Channel:
        """Give a byte stream to a port that the host reaches; ConnectionRefusedError when none listens."""
        try:
            channel = self._transport.open_channel(
                "direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=timeout_s
            )
        except paramiko.ChannelException as fault:
            if fault.code == 1:  # "administratively prohibited"
                raise HostError(
                    found=f"sshd on {self.name} does not forward connections: {fault.text}",
                    expected="`AllowTcpForwarding yes` or `local` in its sshd_config",
                    remedy="allow it there and reload sshd, then repeat",
                ) from fault
            raise ConnectionRefusedError(f"{host}:{port} on {self.name}: {fault.text}") from fault
        except (paramiko.SSHException, EOFError) as fault:
            if self._transport.is_active():
                raise TimeoutError(f"{host}:{port} on {self.name}: {fault}") from fault
            raise self._lost() from fault
        channel.settimeout(timeout_s)
        return channel

    def put(self, local: Path, remote: str, ui: Console, *, sha256: str = "") -> None:
        """Copy a file to the host: resumed if it broke off, verified there, then moved into place.

        Args:
            sha256: the file's hash where the caller knows it; else it is read here first.
        """
        from dih20.hosts.transfer import put

        put(self, local, remote, ui, sha256)

    def get(self, remote: str, local: Path, ui: Console) -> None:
        """Copy a file from the host: verified here, then moved into place."""
        from dih20.hosts.transfer import get

        get(self, remote, local, ui)

    def sftp(self) -> paramiko.SFTPClient:
        """Give an SFTP client on the shared connection."""
        try:
            client = self._transport.open_sftp_client()
        except (paramiko.SSHException, EOFError, OSError) as fault:
            raise HostError(
                found=f"{self.name} does not start SFTP: {fault or type(fault).__name__}",
                expected="a `Subsystem sftp` line in its sshd_config",
                remedy="add `Subsystem sftp internal-sftp` there and reload sshd, then repeat",
            ) from fault
        assert client is not None  # None comes from a closed channel, which raises above
        return client

    def require_connected(self) -> None:
        """Raise ConnectFailed when the connection has broken."""
        if not self._transport.is_active():
            raise self._lost()

    def docker(self) -> docker.DockerClient:
        """Give a Docker client whose every connection runs through this SSH connection."""
        if self._client is None:
            from dih20.hosts.docker_tunnel import docker_client

            self._client = self._ends.enter_context(docker_client(self))
        return self._client

    def _still_running(self, argv: Sequence[str], timeout_s: float) -> HostError:
        if not self._transport.is_active():
            return self._lost()
        return CommandFailed(
            found=f"on {self.name}: `{shlex.join(argv)}` was still running after {timeout_s:.0f} s",
            expected=f"an end within {timeout_s:.0f} s; it may still be running there",
            remedy="see what it waits for by running it by hand on that machine, then repeat",
        )

    def _too_long(self, argv: Sequence[str], limit_bytes: int) -> CommandFailed:
        return CommandFailed(
            found=f"on {self.name}: `{shlex.join(argv)}` wrote more than {limit_bytes >> 20} MiB on one stream",
            expected="output that fits",
            remedy="run it by hand on that machine with its output in a file",
        )

    def _broken_off(self, argv: Sequence[str]) -> HostError:
        if not self._transport.is_active():
            return self._lost()
        return CommandFailed(
            found=f"on {self.name}: `{shlex.join(argv)}` ended without an exit code: a signal ended it",
            expected="exit code 0",
            remedy="look into the host's kernel log for the out-of-memory killer (`dmesg | tail`), then repeat",
        )

    def _lost(self) -> ConnectFailed:
        return ConnectFailed(
            found=f"the connection to {self.name} at {self.target.place} broke",
            expected="one that lasts as long as the task",
            remedy="see that the host is up, then repeat: finished transfers are not made again",
        )


def command_line(argv: Sequence[str], env: Mapping[str, str] | None) -> str:
    """Quote a command for the login shell at the other end: the one place where that is done.

    Variables go through env(1), since sshd passes on only those that its AcceptEnv names.
    """
    assignments = [f"{name}={value}" for name, value in (env or {}).items()]
    return shlex.join([*(["env", *assignments] if assignments else []), *argv])
