"""A private sshd on a loopback port, with host keys and a user key made for one run."""

from __future__ import annotations

import contextlib
import getpass
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dih20.errors import RehearsalFailed
from dih20.rehearse.processes import Server


def free_port() -> int:
    """Give a loopback port that was free a moment ago, and that no outgoing connection takes since."""
    below = _below_outgoing()
    for port in (*random.sample(below, min(20, len(below))), 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            chosen: int = probe.getsockname()[1]
            return chosen
    raise RehearsalFailed(
        found="every loopback port that was tried is taken",
        expected="a free one",
        remedy="see `ss -ltn` for what listens on them, and end what should not",
    )


def _below_outgoing() -> range:
    """Give ports below those of outgoing connections; none where the system does not say which those are."""
    try:
        said = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    except OSError:
        return range(0)
    lowest = int(said.split()[0])
    return range(max(1024, lowest - 12000), lowest)


class PrivateSshd:
    """An sshd for the current user; `options` are extra sshd_config lines (MaxStartups, ...).

    Attributes after entering: port, identity_file (ed25519), known_hosts (a file that lists this
    server's keys under [127.0.0.1]:port), folder (everything it owns, removed on exit).
    """

    def __init__(
        self,
        *,
        options: Mapping[str, str] | None = None,
        host_key_types: tuple[str, ...] = ("ed25519", "rsa"),
        port: int | None = None,
    ) -> None:
        self._options, self._types = dict(options or {}), host_key_types
        self._wanted_port = port
        self._server: Server | None = None
        self.user = getpass.getuser()

    def __enter__(self) -> PrivateSshd:
        self.folder = Path(tempfile.mkdtemp(prefix="dih20-sshd-"))
        try:
            self.identity_file = self._make_key("user_ed25519", "ed25519")
            host_keys = [self._make_key(f"host_{kind}", kind) for kind in self._types]
            try:
                self._start(host_keys)
            except RehearsalFailed:
                if self._wanted_port:
                    raise
                self._start(host_keys)  # somebody may have taken the port that was free
        except BaseException:
            self.close()
            raise
        return self

    def _start(self, host_keys: list[Path]) -> None:
        self.port = self._wanted_port or free_port()
        self.known_hosts = self.folder / "known_hosts"
        self.known_hosts.write_text(
            "".join(f"[127.0.0.1]:{self.port} {self._public(key)}\n" for key in host_keys)
        )
        authorized = self.folder / "authorized_keys"
        authorized.write_text((self.folder / "user_ed25519.pub").read_text())
        authorized.chmod(0o600)
        config = self._write_config(host_keys, authorized)
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's privilege separation folder
        argv = ["sshd", "-D", "-e", "-f", str(config)]
        self._server = Server(argv, log=self.folder / "sshd.log", name="the private sshd")
        self._server.wait_until(self._answers, 15)

    def _make_key(self, name: str, kind: str) -> Path:
        path = self.folder / name
        command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "throwaway", "-f", str(path)]
        subprocess.run(command, check=True, capture_output=True)
        return path

    @staticmethod
    def _public(key: Path) -> str:
        return " ".join(key.with_suffix(".pub").read_text().split()[:2])

    def _write_config(self, host_keys: list[Path], authorized: Path) -> Path:
        settings = {
            "Port": str(self.port),
            "ListenAddress": "127.0.0.1",
            "AuthorizedKeysFile": str(authorized),
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
            "StrictModes": "no",
            "UsePAM": "no",
            "UseDNS": "no",
            "PidFile": str(self._pid_file),
            "Subsystem": "sftp internal-sftp",
            **self._options,
        }
        lines = [f"HostKey {key}" for key in host_keys] + [f"{k} {v}" for k, v in settings.items()]
        config = self.folder / "sshd_config"
        config.write_text("\n".join(lines) + "\n")
        return config

    @property
    def _pid_file(self) -> Path:
        return self.folder / "sshd.pid"  # sshd writes it when it has the port

    def _answers(self) -> bool:
        if not self._pid_file.exists():
            return False  # whatever answers on that port is not ours
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                return probe.recv(4) == b"SSH-"
        except OSError:
            return False

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server and remove its folder."""
        if self._server is not None:
            self._server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
