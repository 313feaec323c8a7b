"""Open an SSH transport: TCP, banner, host key, authentication, each with its own way to fail."""

from __future__ import annotations

import logging
import random
import socket
import time
from typing import Any

import paramiko

from dih20.errors import AuthFailed, ConnectFailed
from dih20.hosts.identity import keys_for
from dih20.hosts.known_hosts import HostKey, KnownHosts, entry_name, verify
from dih20.hosts.ssh_target import SshTarget

# paramiko reports from its own thread; what matters comes back to us as an exception.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

BANNER_ATTEMPTS = 7
_FIRST_PAUSE_S = 0.25
_KEEPALIVE_S = 15
_UNANSWERED_MS = 60_000
_WINDOW_BYTES = 4 << 20
_CIPHERS_FIRST = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")


def open_transport(target: SshTarget, *, accept_host_key: str = "") -> paramiko.Transport:
    """Give a verified and authenticated transport to a server, through its jump hosts."""
    known = KnownHosts.read(target.known_hosts)
    via = open_transport(target.jump, accept_host_key=accept_host_key) if target.jump else None
    try:
        transport = _negotiate(target, known, via)
    except BaseException:
        if via is not None:
            close_transport(via)
        raise
    try:
        key = transport.get_remote_server_key()
        shown = HostKey(kind=key.get_name(), blob=key.asbytes())
        place = (target.address, target.port)
        verify(known, *place, shown, called=target.name, accept=accept_host_key)
        _authenticate(transport, target)
    except BaseException:
        close_transport(transport)
        raise
    transport.set_keepalive(_KEEPALIVE_S)
    return transport


def close_transport(transport: paramiko.Transport) -> None:
    """Close a transport, and the ones to jump hosts that it runs through."""
    inner = transport.sock
    transport.close()
    if isinstance(inner, paramiko.Channel):
        close_transport(inner.get_transport())


def _negotiate(
    target: SshTarget, known: KnownHosts, via: paramiko.Transport | None
) -> paramiko.Transport:
    """Exchange banners and keys; a server that hangs up first is asked again, a bounded number of times."""
    pause = _FIRST_PAUSE_S
    for attempt in range(1, BANNER_ATTEMPTS + 1):
        transport = _new_transport(_connect(target, via), known, target)
        try:
            transport.start_client(timeout=target.timeout_s)
        except (paramiko.SSHException, EOFError, OSError) as fault:
            transport.close()
            if not _before_banner(fault, transport):
                raise _no_agreement(target, fault) from fault
            if attempt == BANNER_ATTEMPTS:
                raise _dropped(target, attempt) from fault
        else:
            return transport
        time.sleep(pause * random.uniform(0.5, 1.5))  # several clients must not come back in step
        pause = min(pause * 2, 4.0)
    raise AssertionError("the loop above returns or raises")


def _new_transport(sock: Any, known: KnownHosts, target: SshTarget) -> paramiko.Transport:
    transport = paramiko.Transport(sock, default_window_size=_WINDOW_BYTES)
    transport.daemon = True
    transport.banner_timeout = target.timeout_s
    options = transport.get_security_options()
    options.ciphers = sorted(options.ciphers, key=lambda cipher: cipher not in _CIPHERS_FIRST)
    options.key_types = known.preferred(entry_name(target.address, target.port), options.key_types)
    return transport


def _connect(target: SshTarget, via: paramiko.Transport | None) -> Any:
    if via is not None:
        try:
            return via.open_channel(
                "direct-tcpip",
                (target.address, target.port),
                ("127.0.0.1", 0),
                timeout=target.timeout_s,
            )
        except paramiko.SSHException as fault:
            jump = target.jump.place if target.jump else "the jump host"
            raise _no_connection(target, f"{jump} cannot reach it: {fault}") from fault
    try:
        sock = socket.create_connection((target.address, target.port), timeout=target.timeout_s)
    except socket.gaierror as fault:
        raise _no_connection(target, f"the name {target.address!r} cannot be resolved") from fault
    except TimeoutError as fault:
        raise _no_connection(target, f"no answer within {target.timeout_s:.0f} s") from fault
    except OSError as fault:
        raise _no_connection(target, (fault.strerror or str(fault)).lower()) from fault
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # a dead peer ends the connection instead of a silence
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
    return sock


def _authenticate(transport: paramiko.Transport, target: SshTarget) -> None:
    offered: list[str] = []
    for called, key in keys_for(target.identity_file):
        offered.append(called)
        try:
            still_wanted = transport.auth_publickey(target.user, key)
        except paramiko.BadAuthenticationType as fault:
            raise _refused(
                target, f"it takes {', '.join(fault.allowed_types)}, not publickey"
            ) from fault
        except paramiko.AuthenticationException:
            if transport.is_active():
                continue
            raise _tried_too_often(target, offered) from None
        except (paramiko.SSHException, EOFError) as fault:
            raise _tried_too_often(target, offered) from fault
        if still_wanted:
            raise _refused(target, f"it takes the key, and wants {', '.join(still_wanted)} as well")
        return
    raise _refused(
        target, f"offered: {', '.join(offered) or 'no key: none in the agent or ~/.ssh'}"
    )


def _before_banner(fault: Exception, transport: paramiko.Transport) -> bool:
    return not getattr(transport, "remote_version", "") and not (
        isinstance(fault, paramiko.SSHException) and "version" in str(fault)
    )


def _no_connection(target: SshTarget, why: str) -> ConnectFailed:
    return ConnectFailed(
        found=f"no connection to {target.name} at {target.place}: {why}",
        expected=f"an SSH server there (from configs/hosts/{target.name}.yaml and ~/.ssh/config)",
        remedy=f"try `ssh -p {target.port} {target.user}@{target.address} true`; correct address or port, or "
        "bring the host up",
    )


def _dropped(target: SshTarget, attempts: int) -> ConnectFailed:
    return ConnectFailed(
        found=f"{target.place}: server dropped us before banner (MaxStartups?), {attempts} times",
        expected="an SSH banner within the connect timeout of the host's configuration",
        remedy="wait until fewer logins are under way, or raise MaxStartups in the host's sshd_config; then repeat",
    )


def _no_agreement(target: SshTarget, fault: Exception) -> ConnectFailed:
    if isinstance(fault, TimeoutError):
        fault = TimeoutError(f"no answer within {target.timeout_s:.0f} s")
    return ConnectFailed(
        found=f"{target.place}: the SSH handshake failed: {fault or type(fault).__name__}",
        expected="an SSH server with current algorithms (ed25519, ecdsa or rsa-sha2 host key)",
        remedy=f"see what it offers with `ssh -vv -p {target.port} {target.user}@{target.address} true`",
    )


def _refused(target: SshTarget, why: str) -> AuthFailed:
    return AuthFailed(
        found=f"{target.place} refused {target.user}; {why}",
        expected=f"a key in ~{target.user}/.ssh/authorized_keys on the host",
        remedy=f"run `ssh-copy-id -p {target.port} {target.user}@{target.address}`, or set user and "
        f"identity_file in configs/hosts/{target.name}.yaml",
    )


def _tried_too_often(target: SshTarget, offered: list[str]) -> AuthFailed:
    return AuthFailed(
        found=f"{target.place} hung up after {len(offered)} key(s) (MaxAuthTries?): {', '.join(offered)}",
        expected="a key that the host takes among the first few offered",
        remedy=f"set identity_file in configs/hosts/{target.name}.yaml, so that only that key is offered",
    )
