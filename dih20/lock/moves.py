"""What differs between two locks, pin by pin: old -> new, and what a person must look at twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dih20.errors import PinMoved
from dih20.lock.files import UNRESOLVED, LockedFile, LockedSource
from dih20.lock.keeping import index_groups
from dih20.lock.model import Lock
from dih20.plan import Action

ABSENT = "absent"


@dataclass(frozen=True, kw_only=True)
class Move:
    """One pin that differs. `where` is its group in the lock."""

    where: str
    name: str
    old: str
    new: str
    is_replaced: bool = False  # the same file name with another content

    @property
    def verb(self) -> str:
        return "add" if self.old == ABSENT else "drop" if self.new == ABSENT else "move"

    def __str__(self) -> str:
        return f"{self.where}: {self.name} {self.old} -> {self.new}"

    def action(self) -> Action:
        details = {"where": self.where, "name": self.name, "old": self.old, "new": self.new}
        target = f"{self.where}: {self.name}"
        return Action(
            verb=self.verb, target=target, why=f"{self.old} -> {self.new}", details=details
        )


def moves(before: Lock | None, after: Lock) -> list[Move]:
    """Give every pin that moved, came or went, in the lock's order."""
    old = dict(_groups(before)) if before else {}
    new = dict(_groups(after))
    found = []
    for where in dict.fromkeys([*new, *old]):
        was, now = old.get(where, {}), new.get(where, {})
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) != now.get(name):
                found.append(_move(where, name, was.get(name), now.get(name)))
    return found


def refuse_replaced(found: list[Move]) -> None:
    """Raise PinMoved when a file kept its name and changed its content: nobody asked for that."""
    replaced = [move for move in found if move.is_replaced]
    if replaced:
        names = list(dict.fromkeys(move.name for move in replaced))
        raise PinMoved(
            found="files with another content under the locked name:\n  "
            + "\n  ".join(map(str, replaced[:12])),
            expected="the content in di.lock.yaml: an index or mirror never changes a file it has published",
            remedy=f"find out why it changed; `./inv lock --upgrade {','.join(names)}` accepts it",
        )


Pin = tuple[str, str, str]  # version, file name, hash


def _groups(lock: Lock) -> Iterator[tuple[str, dict[str, Pin]]]:
    for name, base in sorted(lock.bases.items()):
        if base.is_stand_in:
            yield f"base {name}", _pins(base.packages)
        else:
            image = base.image or ""
            yield f"base {name}", {image: (base.digest, image, base.digest)}
    for name, debs in sorted(lock.apt.items()):
        yield f"apt {name}", {} if debs == UNRESOLVED else _pins(debs)
    for where, files in index_groups(lock):
        yield where, _pins(files)
    if not isinstance(lock.upstream, str):
        yield "sources", {name: _source_pin(s) for name, s in sorted(lock.upstream.items())}
    if lock.ci != UNRESOLVED:
        yield "ci apt", _pins(lock.ci.debs)
        yield "ci wheels", _pins(lock.ci.wheels)


def _pins(files: tuple[LockedFile, ...]) -> dict[str, Pin]:
    return {file.name: (file.version, file.filename, file.sha256) for file in files}


def _source_pin(source: LockedSource) -> Pin:
    file = source.file
    return source.version, file.filename if file else "", file.sha256 if file else ""


def _move(where: str, name: str, was: Pin | None, now: Pin | None) -> Move:
    if was is None or now is None:
        return Move(
            where=where,
            name=name,
            old=was[0] if was else ABSENT,
            new=now[0] if now else ABSENT,
        )
    if was[0] != now[0]:
        return Move(where=where, name=name, old=was[0], new=now[0])
    if was[1] != now[1]:
        return Move(where=where, name=name, old=was[1], new=now[1])
    return Move(
        where=where,
        name=name,
        old=f"{was[0]} (sha256 {was[2][:12]})",
        new=f"{now[0]} (sha256 {now[2][:12]})",
        is_replaced=True,
    )
