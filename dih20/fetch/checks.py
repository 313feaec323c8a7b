"""What `inv doctor` asks about downloads: which mirrors are in force, and what the cache holds."""

from __future__ import annotations

from collections.abc import Iterator

from dih20.doctor.registry import Finding, Subject, check


@check("downloads", where="local")
def downloads_are_in_the_cache(subject: Subject) -> Iterator[Finding]:
    """Say which indexes are in force and how much of the lock is in the cache; asks no network."""
    from dih20.config import load_mirrors
    from dih20.fetch.cache import place
    from dih20.fetch.groups import ON_REQUEST, groups_of
    from dih20.index.pip_settings import effective_settings
    from dih20.index.session import without_password
    from dih20.lock.files import LockedFile
    from dih20.lock.model import Lock
    from dih20.paths import cache_dir, shown

    settings = effective_settings(load_mirrors())
    yield Finding.ok(
        f"package indexes, from {settings.source}: {', '.join(map(without_password, settings.indexes))}"
    )
    lock = Lock.load()
    for base in sorted(lock.bases):
        if not lock.base(base).is_resolved:
            yield Finding.not_applicable(f"inputs of base {base}: its digest is unresolved")
            continue
        files: list[LockedFile] = []
        for name, group in groups_of(lock, base).items():
            files += [] if name in ON_REQUEST else group()
        missing = [f for f in files if not place(f).is_file()]
        text = f"{len(files) - len(missing)} of {len(files)} inputs of base {base} in {shown(cache_dir())}"
        if missing:
            size = sum(f.size_bytes for f in missing) / 1e6
            yield Finding.warn(
                f"{text}; {size:.0f} MB to fetch",
                expected="all of them",
                remedy=f"./inv fetch --base {base}",
            )
        else:
            yield Finding.ok(text)
