"""Where a connection goes: a host's configuration, completed from the user's ~/.ssh/config.

People type `nv-h20` because their ssh does. What configs/hosts says wins; what it leaves open comes
from the Host block of that alias: HostName, Port, User, IdentityFile, ProxyJump, UserKnownHostsFile.
"""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.errors import ConfigError
from dih20.hosts.known_hosts import DEFAULT_PORT

if TYPE_CHECKING:
    from dih20.config import HostConfig

USER_CONFIG = Path("~/.ssh/config")
_USER_KNOWN_HOSTS = "~/.ssh/known_hosts"
_SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"


@dataclass(frozen=True, kw_only=True)
class SshTarget:
    """One server to log in to; `jump` is the server to go through."""

    name: str
    address: str
    port: int
    user: str
    identity_file: Path | None
    known_hosts: tuple[Path, ...]
    timeout_s: float
    jump: SshTarget | None = None

    @property
    def place(self) -> str:
        return f"[{self.address}]:{self.port}"


def resolve(host: HostConfig, config_file: Path | None = None) -> SshTarget:
    """Give the target of a host: its own file first, then the Host block of its address."""
    config_file = (config_file or USER_CONFIG).expanduser()
    block = _block(host.address, config_file)
    own_port = host.port if "port" in host.model_fields_set else None
    return SshTarget(
        name=host.name,
        address=str(block.get("hostname", host.address)),
        port=own_port or int(block.get("port", DEFAULT_PORT)),
        user=host.user or block.get("user") or getpass.getuser(),
        identity_file=_identity(host.identity_file, block),
        known_hosts=_known_hosts_files(host.known_hosts, block),
        timeout_s=host.connect_timeout_s,
        jump=_jump(block, config_file, host.connect_timeout_s),
    )


def _block(alias: str, config_file: Path) -> dict[str, Any]:
    if not config_file.is_file():
        return {}
    import paramiko

    try:
        block = dict(paramiko.SSHConfig.from_path(str(config_file)).lookup(alias))
    except paramiko.ConfigParseError as fault:
        raise ConfigError(
            found=f"{config_file}: {fault}",
            expected="an OpenSSH client configuration",
            remedy=f"correct {config_file}; `ssh -G {alias}` shows what ssh makes of it",
        ) from fault
    command = block.get("proxycommand")
    if command:
        raise ConfigError(
            found=f"{config_file}: Host {alias} has a ProxyCommand",
            expected="ProxyJump, or a direct connection",
            remedy=f"replace it by `ProxyJump GATEWAY` in the block of {alias}",
        )
    return block


def _identity(own: str | None, block: dict[str, Any]) -> Path | None:
    if own:
        return Path(own).expanduser()
    files = [Path(name).expanduser() for name in block.get("identityfile", [])]
    return next((path for path in files if path.exists()), files[0] if files else None)


def _known_hosts_files(own: str | None, block: dict[str, Any]) -> tuple[Path, ...]:
    if own:
        return (Path(own).expanduser(),)
    files = str(block.get("userknownhostsfile", _USER_KNOWN_HOSTS)).split() + [_SYSTEM_KNOWN_HOSTS]
    return tuple(Path(name).expanduser() for name in files)


def _jump(block: dict[str, Any], config_file: Path, timeout_s: float) -> SshTarget | None:
    jump: SshTarget | None = None
    for hop in filter(None, str(block.get("proxyjump", "")).replace("none", "").split(",")):
        user, _, place = hop.strip().rpartition("@")
        alias, colon, port = place.partition(":")
        inner = _block(alias, config_file)
        jump = SshTarget(
            name=alias,
            address=str(inner.get("hostname", alias)),
            port=int(port) if colon else int(inner.get("port", DEFAULT_PORT)),
            user=user or inner.get("user") or getpass.getuser(),
            identity_file=_identity(None, inner),
            known_hosts=_known_hosts_files(None, inner),
            timeout_s=timeout_s,
            jump=jump,
        )
    return jump
