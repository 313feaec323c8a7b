"""Decide whether a server's host key is the one we know: known_hosts files, read and compared.

A server on another port than 22 is filed as [host]:port, and only that entry counts for it: several
servers with different keys may live on one address. Nothing is ever added on its own.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dih20.errors import HostKeyRefused

DEFAULT_PORT = 22
_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")


@dataclass(frozen=True, kw_only=True)
class HostKey:
    """A public host key: its type and its bytes on the wire."""

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.blob).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    def __str__(self) -> str:
        return f"{self.kind} {self.fingerprint}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a known_hosts file."""

    patterns: tuple[str, ...]
    key: HostKey
    revoked: bool
    where: str  # file:line

    def matches(self, name: str) -> bool:
        """Say whether this line is about a host; a pattern with ! excludes it."""
        hits = [pattern for pattern in self.patterns if _matches(pattern.removeprefix("!"), name)]
        return bool(hits) and not any(hit.startswith("!") for hit in hits)


@dataclass(frozen=True, kw_only=True)
class KnownHosts:
    """The lines of one or more known_hosts files; the first file is where an accepted key goes."""

    files: tuple[Path, ...]
    entries: tuple[Entry, ...]

    @classmethod
    def read(cls, files: Sequence[Path]) -> KnownHosts:
        entries = [entry for path in files if path.is_file() for entry in _parse(path)]
        return cls(files=tuple(files), entries=tuple(entries))

    def lookup(self, name: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.matches(name)]

    def preferred(self, name: str, offered: Iterable[str]) -> tuple[str, ...]:
        """Order signature algorithms so that a key type we know for this host is asked for first.

        Without this a server with an rsa and an ed25519 key may show the one we have never seen.
        """
        known = {algorithm for e in self.lookup(name) for algorithm in _algorithms(e.key.kind)}
        offered = tuple(offered)
        return tuple(sorted(offered, key=lambda algorithm: algorithm not in known))

    def accept(self, name: str, key: HostKey) -> None:
        """File a key whose fingerprint a person has confirmed."""
        path = self.files[0]
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("a") as out:
            out.write(f"{name} {key.kind} {base64.b64encode(key.blob).decode()}\n")


def entry_name(host: str, port: int) -> str:
    """Give the name under which known_hosts files a server: host, or [host]:port."""
    return host if port == DEFAULT_PORT else f"[{host}]:{port}"


def verify(
    known: KnownHosts, host: str, port: int, shown: HostKey, *, called: str = "", accept: str = ""
) -> None:
    """Return when the shown key is known for host and port; raise HostKeyRefused otherwise.

    Args:
        called: the host's name in configs/hosts, for the command that the message gives.
        accept: a SHA256 fingerprint that a person confirmed; it lets an unknown key in, and files
            it. It never overrules a key that has changed or was revoked.
    """
    name, place = entry_name(host, port), f"[{host}]:{port}"
    entries = known.lookup(name)
    for entry in entries:
        if entry.revoked and entry.key == shown:
            raise HostKeyRefused(
                found=f"{place} shows {shown}, which {entry.where} marks as @revoked",
                expected="a host key that was not revoked",
                remedy="ask who runs the host; do not connect until it has a new key",
            )
    trusted = [entry for entry in entries if not entry.revoked]
    if any(entry.key == shown for entry in trusted):
        return
    if trusted:
        raise _changed(place, name, shown, trusted)
    if accept == shown.fingerprint:
        known.accept(name, shown)
        return
    raise _unknown(known, host, port, shown, called or host, accept)


def _changed(place: str, name: str, shown: HostKey, trusted: list[Entry]) -> HostKeyRefused:
    filed = "; ".join(f"{entry.key} ({entry.where})" for entry in trusted)
    return HostKeyRefused(
        found=f"the host key of {place} has CHANGED: it shows {shown}",
        expected=f"the key on file: {filed}",
        remedy="someone may be in between: ask who runs the host whether its key was replaced; "
        f"only if so, run `ssh-keygen -R '{name}' -f {trusted[0].where.rpartition(':')[0]}`, then repeat",
    )


def _unknown(
    known: KnownHosts, host: str, port: int, shown: HostKey, called: str, accept: str
) -> HostKeyRefused:
    found = f"the host key of [{host}]:{port} is unknown: it shows {shown}"
    if accept:
        found += f", not the accepted {accept}"
    if port != DEFAULT_PORT and known.lookup(host):
        found += f" (the entry for {host} without a port is for port 22 and does not count)"
    return HostKeyRefused(
        found=found,
        expected=f"an entry {entry_name(host, port)!r} in {', '.join(map(str, known.files))}",
        remedy="compare the fingerprint with one that the host's owner gives you; if it is the same, "
        f"run `./inv doctor --host {called} --accept-host-key {shown.fingerprint}`, then repeat",
    )


def _algorithms(kind: str) -> tuple[str, ...]:
    return _RSA_SIGNATURES if kind == "ssh-rsa" else (kind,)


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        return _matches_hashed(pattern, name)
    # Brackets are literal in known_hosts, while fnmatch would read a character class.
    literal = pattern.replace("[", "[[]")
    return fnmatch.fnmatchcase(name.lower(), literal.lower())


def _matches_hashed(pattern: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in pattern[3:].split("|"))
    except ValueError:
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), "sha1").digest(), digest)


def _parse(path: Path) -> Iterator[Entry]:
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        if marker not in ("", "@revoked") or len(fields) < 3:
            continue  # certificate authorities: not supported, so they trust nothing
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except binascii.Error:
            continue
        yield Entry(
            patterns=tuple(fields[0].split(",")),
            key=HostKey(kind=fields[1], blob=blob),
            revoked=marker == "@revoked",
            where=f"{path}:{number}",
        )
