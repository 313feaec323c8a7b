"""Give a layer its normal form: the same files are the same bytes, whenever and wherever they were made.

Members in the order of their names, one date, owners as numbers, without traces of the build.
Of files that share their content by hard links the first in order holds it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import replace

from dih20.errors import ImageError
from dih20.image.archive.leftovers import is_rewritten, rewritten, without_leftovers
from dih20.image.archive.raw_layer import RawLayer
from dih20.image.archive.streams import BLOCK_BYTES
from dih20.image.archive.tar_header import END, FILE, LINK, Member, header, padding, stored_size
from dih20.source_date import SOURCE_DATE_EPOCH

FORMAT = 1  # raise it when the same files would become other bytes than before


class NormalLayer:
    """A layer in its normal form, written while it is read.

    Example:
        layer = NormalLayer(FolderLayer(path))
        for chunk in layer.chunks(): out.write(chunk)      # layer.size_bytes in all
        layer.diff_id                                      # known after the last chunk
    """

    def __init__(self, raw: RawLayer, mtime: int = SOURCE_DATE_EPOCH) -> None:
        self._raw, self._mtime = raw, mtime
        found = [member for member in raw.members() if member.name]
        kept = without_leftovers(found)
        self.left_out = len(found) - len(kept)
        self._texts: dict[bytes, bytes] = {}
        self.members = _in_order(_with_own_content(found, kept))
        for member in self.members:
            if is_rewritten(member):
                text = rewritten(b"".join(raw.content(member)))
                self._texts[member.name], member.size = text, len(text)
        self.size_bytes = sum(stored_size(m, mtime) for m in self.members) + len(END)
        self.diff_id = ""

    @property
    def is_empty(self) -> bool:
        return not self.members

    def chunks(self) -> Iterator[bytes]:
        """Give the tar in pieces of bounded size."""
        seen = hashlib.sha256()
        piece = bytearray()
        for part in self._parts():
            if len(part) >= BLOCK_BYTES // 4:
                if piece:
                    seen.update(piece)
                    yield bytes(piece)
                    piece.clear()
                seen.update(part)
                yield part
                continue
            piece += part
            if len(piece) >= BLOCK_BYTES:
                seen.update(piece)
                yield bytes(piece)
                piece.clear()
        seen.update(piece)
        yield bytes(piece)
        self.diff_id = "sha256:" + seen.hexdigest()

    def _parts(self) -> Iterator[bytes]:
        for member in self.members:
            yield header(member, self._mtime)
            if member.kind == FILE and member.size:
                text = self._texts.get(member.name)
                yield from self._raw.content(member) if text is None else (text,)
                if filling := padding(member.size):
                    yield filling
        yield END


def _in_order(members: list[Member]) -> list[Member]:
    """Sort by name, a folder before what is in it, and refuse a name that occurs twice."""
    members.sort(key=_by_name)
    for one, other in itertools.pairwise(members):
        if one.name == other.name:
            raise ImageError(
                found=f"{_shown(one)} occurs twice in one layer",
                expected="every name once",
                remedy="report it with the engine's version; the layer cannot be put in order",
            )
    return members


def _with_own_content(found: list[Member], kept: list[Member]) -> list[Member]:
    """Let the first of each group of hard links, by name, hold the content and the others point to it.

    The content may have stood in a member that is left out, so holders are looked up in all.
    """
    groups: dict[bytes, list[Member]] = {}
    for member in kept:
        if member.kind == LINK:
            groups.setdefault(member.link, []).append(member)
    if not groups:
        return kept
    holders = {member.name: member for member in found if member.name in groups}
    still_there = {id(member) for member in kept}
    for target, links in groups.items():
        holder = holders.get(target)
        if holder is None or holder.kind == LINK:
            raise ImageError(
                found=f"{_shown(links[0])} is a hard link to {os.fsdecode(target)}, which is not in its layer",
                expected="both in the same layer",
                remedy="make it a file of its own, or a symbolic link, in the step that makes it",
            )
        content = replace(holder)
        group = sorted([*links, *([holder] if id(holder) in still_there else [])], key=_by_name)
        for member in group:
            _take(member, content, None if member is group[0] else group[0].name)
    return kept


def _take(member: Member, content: Member, first: bytes | None) -> None:
    """Make a member the holder of the content (first is None), or a link to the holder."""
    member.mode, member.uid, member.gid = content.mode, content.uid, content.gid
    if first is None:
        member.kind, member.size, member.link = content.kind, content.size, content.link
        member.device, member.capability = content.device, content.capability
        member.origin = content.origin
    else:
        member.kind, member.size, member.link = LINK, 0, first
        member.device, member.capability, member.origin = (0, 0), b"", 0


def _by_name(member: Member) -> list[bytes]:
    return member.name.split(b"/")


def _shown(member: Member) -> str:
    return os.fsdecode(member.name)
