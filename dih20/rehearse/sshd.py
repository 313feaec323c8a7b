"""A private sshd on a loopback port, with host keys and a user key made for one run."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dih20.rehearse.processes import Server


def free_port() -> int:
    """Give a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
        self.port = port or free_port()
        self.user = getpass.getuser()

    def __enter__(self) -> PrivateSshd:
        self.folder = Path(tempfile.mkdtemp(prefix="dih20-sshd-"))
        self.identity_file = self._make_key("user_ed25519", "ed25519")
        authorized = self.folder / "authorized_keys"
        authorized.write_text((self.folder / "user_ed25519.pub").read_text())
        authorized.chmod(0o600)
        host_keys = [self._make_key(f"host_{kind}", kind) for kind in self._types]
        self.known_hosts = self.folder / "known_hosts"
        self.known_hosts.write_text(
            "".join(f"[127.0.0.1]:{self.port} {self._public(key)}\n" for key in host_keys)
        )
        config = self._write_config(host_keys, authorized)
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's privilege separation folder
        argv = ["sshd", "-D", "-e", "-f", str(config)]
        self._server = Server(argv, log=self.folder / "sshd.log", name="the private sshd")
        self._server.wait_until(self._answers, 15)
        return self

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
            "PidFile": str(self.folder / "sshd.pid"),
            "Subsystem": "sftp internal-sftp",
            **self._options,
        }
        lines = [f"HostKey {key}" for key in host_keys] + [f"{k} {v}" for k, v in settings.items()]
        config = self.folder / "sshd_config"
        config.write_text("\n".join(lines) + "\n")
        return config

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                return probe.recv(4) == b"SSH-"
        except OSError:
            return False

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
