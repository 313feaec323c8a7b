"""What `inv doctor` asks about the lock."""

from __future__ import annotations

from collections.abc import Iterator

from dih20.doctor.registry import Finding, Subject, check


@check("lock", where="local")
def lock_answers_the_configuration(subject: Subject) -> Iterator[Finding]:
    """The lock is readable, in canonical form and answers configs/images; asks no network."""
    from dih20.config import load_image
    from dih20.lock.checking import check_wants, check_written_form, unresolved_parts
    from dih20.lock.model import Lock
    from dih20.lock.wants import SECTIONS

    lock = Lock.load()
    check_written_form(lock)
    check_wants(lock, load_image(lock.image), SECTIONS)
    yield Finding.ok(f"identity {lock.identity[:12]}, answers configs/images/{lock.image}.yaml")
    for part in unresolved_parts(lock):
        what, _, command = part.partition(": ")
        yield Finding.warn(
            f"{what} unresolved", expected="a pin; only a real host needs it", remedy=command
        )
