"""Which keys are offered to a server, and why one could not be read.

With an identity file only that key is offered: an agent with eight others would use up the
server's MaxAuthTries before ours has its turn. An encrypted key is taken from the agent when the
agent holds the same one, else its passphrase comes from DI_SSH_PASSPHRASE or the terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import paramiko

from dih20.errors import AuthFailed

PASSPHRASE_VARIABLE = "DI_SSH_PASSPHRASE"
_DEFAULT_FILES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


def keys_for(identity_file: Path | None) -> Iterator[tuple[str, paramiko.PKey]]:
    """Give (what to call it, key) in the order in which the keys are offered."""
    if identity_file is not None:
        yield str(identity_file), load_key(identity_file)
        return
    for number, key in enumerate(_agent_keys(), start=1):
        yield f"agent key {number} ({key.comment or key.get_name()})", key
    for name in _DEFAULT_FILES:
        path = Path(name).expanduser()
        if path.exists():
            yield str(path), load_key(path)


def load_key(path: Path) -> paramiko.PKey:
    """Read a private key; AuthFailed says whether the file, its format or its passphrase is wrong."""
    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError as fault:
        raise AuthFailed(
            found=f"no key file {path}",
            expected="the private key named by identity_file of the host, or by IdentityFile in ~/.ssh/config",
            remedy=f"correct the path, or make a key with `ssh-keygen -t ed25519 -f {path}`",
        ) from fault
    except PermissionError as fault:
        raise AuthFailed(
            found=f"{path} cannot be read: {fault.strerror}",
            expected="a private key that this user may read",
            remedy=f"run `ls -l {path}`, and give the file to this user with mode 600",
        ) from fault
    except TypeError:
        return _encrypted_key(path)  # paramiko passes on the crypto library's "password not given"
    except (ValueError, paramiko.SSHException) as fault:
        raise _unreadable(path, fault) from fault


def _encrypted_key(path: Path) -> paramiko.PKey:
    public = path.with_name(path.name + ".pub")
    if public.exists():
        wanted = public.read_text().split()[1:2]
        for key in _agent_keys():
            if [key.get_base64()] == wanted:
                return key
    passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    if passphrase is None and sys.stdin.isatty():
        import getpass

        passphrase = getpass.getpass(f"passphrase for {path}: ")
    if passphrase is None:
        raise AuthFailed(
            found=f"{path} is encrypted, and there is no terminal to ask for its passphrase",
            expected=f"the key in the agent, or its passphrase in {PASSPHRASE_VARIABLE}",
            remedy=f"run `ssh-add {path}`, then repeat",
        )
    try:
        return paramiko.PKey.from_path(path, passphrase.encode())  # type: ignore[arg-type]
    except (ValueError, paramiko.SSHException) as fault:
        raise AuthFailed(
            found=f"passphrase wrong for {path}",
            expected="the passphrase that the key was encrypted with",
            remedy=f"try it by hand with `ssh-keygen -y -f {path}`, or run `ssh-add {path}`; then repeat",
        ) from fault


def _unreadable(path: Path, fault: Exception) -> AuthFailed:
    first = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
    return AuthFailed(
        found=f"{path} is not a private key that can be read: {first}",
        expected="an ed25519, ecdsa or rsa private key in OpenSSH or PEM form",
        remedy=f"see what ssh makes of it with `ssh-keygen -y -f {path}`",
    )


def _agent_keys() -> tuple[paramiko.AgentKey, ...]:
    try:
        return paramiko.Agent().get_keys()
    except paramiko.SSHException:  # an agent that answers with rubbish has no keys for us
        return ()
