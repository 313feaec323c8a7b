"""Say what of our own layers is left out, and what is changed in a file, because it differs each time.

These are traces of the build and not part of the image: caches, logs, package managers' backups,
identities that belong to one machine, byte code that holds the time of its source. What hides a
file of a layer below (a whiteout) always stays, or that file would come back.
"""

from __future__ import annotations

import re

from dih20.image.archive.tar_header import FILE, FOLDER, Member
from dih20.source_date import SOURCE_DATE_EPOCH

_LEFT_OUT_WITH_FOLDERS = re.compile(
    rb"^(tmp|var/tmp|run|dev|proc|sys)/."
    rb"|^(root|home/[^/]+)/\.(cache|npm|nv)(/|$)"
    rb"|^var/lib/apt/(lists|periodic)/."
    rb"|^var/cache/(apt|ldconfig|man|fontconfig)/."
)
_LEFT_OUT = re.compile(
    rb"^var/(log|cache|backups)/."
    rb"|^var/lib/dpkg/[a-z-]+-old$"
    rb"|^var/lib/dpkg/(lock|lock-frontend|triggers/Lock)$"
    rb"|^var/lib/(systemd/random-seed|dbus/machine-id|shells\.state)$"
    rb"|^etc/(passwd|group|shadow|gshadow|subuid|subgid)-$"
    rb"|^etc/(machine-id|\.pwd\.lock)$"
    rb"|^etc/ssh/ssh_host_[^/]*_key(\.pub)?$"
    rb"|^(root|home/[^/]+)/\.(bash_history|python_history|wget-hsts|lesshst|viminfo)$"
    rb"|^usr/share/info/dir\.old$"
    rb"|^\.dockerenv$"
    rb"|(^|/)__pycache__/[^/]+\.pyc(\.\d+)?$"
)
_BYTE_CODE_FOLDER = b"__pycache__"


def is_left_out(member: Member) -> bool:
    """Say whether a member is a trace of the build."""
    if member.is_whiteout:
        return False
    if _LEFT_OUT_WITH_FOLDERS.search(member.name):
        return True
    return member.kind != FOLDER and _LEFT_OUT.search(member.name) is not None


def without_leftovers(members: list[Member]) -> list[Member]:
    """Give what stays; a folder that held nothing but byte code goes with it."""
    kept = [member for member in members if not is_left_out(member)]
    parents = {member.name.rpartition(b"/")[0] for member in kept}
    return [
        member
        for member in kept
        if not (
            member.kind == FOLDER
            and member.base == _BYTE_CODE_FOLDER
            and member.name not in parents
        )
    ]


def is_rewritten(member: Member) -> bool:
    """Say whether a file's content holds the day of the build."""
    return member.kind == FILE and member.name == b"etc/shadow"


def rewritten(content: bytes) -> bytes:
    """Give /etc/shadow with the day of each last password change fixed."""
    day = str(SOURCE_DATE_EPOCH // 86_400).encode()
    lines = [line.split(b":") for line in content.split(b"\n")]
    for fields in lines:
        if len(fields) > 2 and fields[2]:
            fields[2] = day
    return b"\n".join(b":".join(fields) for fields in lines)
