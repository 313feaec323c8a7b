"""Write the header of a tar member, the same bytes on every machine and with every python.

A layer's digest is over these bytes, so they are written here and not left to a library, whose
choice between header formats may change between two of its versions. It is ustar, with a pax
record for what ustar cannot hold: long names, large numbers, capabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 512
END = bytes(2 * BLOCK)

FILE, LINK, SYMLINK, CHAR, DEVICE, FOLDER, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
_MOST_SIZE = 0o77777777777
_MOST_ID = 0o7777777


@dataclass(slots=True, kw_only=True)
class Member:
    """One entry of a layer. `name` has no slash at its end; `origin` says where the content lies.

    Args:
        origin: an offset into a tar, or for a member of a folder nothing but its name.
        link: a symlink's text, or the name of the member that a hard link shares its content with.
        capability: the extended attribute security.capability, the only one that means anything
            away from the machine where it was set.
    """

    name: bytes
    kind: bytes = FILE
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    link: bytes = b""
    device: tuple[int, int] = (0, 0)
    capability: bytes = b""
    origin: int = 0

    @property
    def base(self) -> bytes:
        return self.name.rpartition(b"/")[2]

    @property
    def is_whiteout(self) -> bool:
        """Say whether it hides something of a layer below instead of being something."""
        return self.base.startswith(b".wh.")


def header(member: Member, mtime: int) -> bytes:
    """Give the header blocks of a member; owners as numbers only, names differ between machines."""
    name = member.name + b"/" if member.kind == FOLDER else member.name
    records = b""
    if len(name) > 100 or not name.isascii():
        records += _record(b"path", name)
    if len(member.link) > 100 or not member.link.isascii():
        records += _record(b"linkpath", member.link)
    if member.capability:
        records += _record(b"SCHILY.xattr.security.capability", member.capability)
    for key, value, most in (
        (b"gid", member.gid, _MOST_ID),
        (b"size", member.size, _MOST_SIZE),
        (b"uid", member.uid, _MOST_ID),
    ):
        if value > most:
            records += _record(key, str(value).encode())
    main = _ustar(
        name,
        mode=member.mode & 0o7777,
        uid=member.uid if member.uid <= _MOST_ID else 0,
        gid=member.gid if member.gid <= _MOST_ID else 0,
        size=member.size if member.size <= _MOST_SIZE else 0,
        mtime=mtime,
        kind=member.kind,
        link=member.link,
        device=member.device,
    )
    if not records:
        return main
    extended = _ustar(b"pax", mode=0o644, size=len(records), mtime=mtime, kind=b"x")
    return extended + records + padding(len(records)) + main


def padding(size: int) -> bytes:
    """Give the zeros that fill up the last block of a content."""
    return bytes(-size % BLOCK)


def stored_size(member: Member, mtime: int) -> int:
    """Give how many bytes of the tar the member takes, header and filling included."""
    return len(header(member, mtime)) + member.size + len(padding(member.size))


def _record(key: bytes, value: bytes) -> bytes:
    """Give a pax record; its length counts its own digits."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest)
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def _ustar(
    name: bytes,
    *,
    mode: int,
    size: int,
    mtime: int,
    kind: bytes,
    uid: int = 0,
    gid: int = 0,
    link: bytes = b"",
    device: tuple[int, int] = (0, 0),
) -> bytes:
    block = b"".join(
        (
            name[:100].ljust(100, b"\0"),
            b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (mode, uid, gid, size, mtime),
            b"        ",
            kind,
            link[:100].ljust(100, b"\0"),
            b"ustar\x0000",
            bytes(64),  # names of user and group
            b"%07o\0%07o\0" % device,
            bytes(167),
        )
    )
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]
