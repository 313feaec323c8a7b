"""Pin the bases: a registry image by digest, the stand-in by its package list; and apt packages on each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from dih20.config.image import RegistryBase, StandInBase
from dih20.config.mirrors import Mirrors
from dih20.errors import LockError, Unresolved
from dih20.index.apt_mirrors import apt_mirrors, family
from dih20.index.session import open_session
from dih20.lock.apt_root import AptRoot, private_apt
from dih20.lock.engine import NotReachable, client_faults, engine_client
from dih20.lock.files import OWN, UNRESOLVED, Base, LockedFile
from dih20.lock.registry import resolve_digest
from dih20.lock.stand_in import (
    installed_status,
    package_list_digest,
    read_package_list,
    resolve_base,
)
from dih20.paths import REPOSITORY


def registry_base(name: str, wanted: RegistryBase, digest: str) -> Base:
    """Give a registry base with its digest, or with `unresolved`."""
    return Base(
        name=name,
        image=wanted.image,
        suite=wanted.suite,
        architecture=wanted.architecture,
        digest=digest,
        python_tag=wanted.python_tag,
        torch=wanted.torch,
        glibc=wanted.glibc,
    )


def ask_registry(wanted: RegistryBase, mirrors: Mirrors) -> str:
    """Give the digest of a registry base, or raise Unresolved that says why it could not be asked."""
    return resolve_digest(wanted.image, open_session(mirrors))


class AptRoots:
    """Private apt roots, one per suite, made on first use and removed at the end.

    Example:
        with AptRoots(mirrors) as roots:
            packages = stand_in_base("stand-in", wanted, roots)
    """

    def __init__(self, mirrors: Mirrors) -> None:
        self.mirrors = mirrors
        self._stack = ExitStack()
        self._roots: dict[str, AptRoot] = {}

    def __enter__(self) -> AptRoots:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def root(self, suite: str, architecture: str) -> AptRoot:
        if suite not in self._roots:
            of = family(suite)
            if of is None:
                raise LockError(
                    found=f"suite {suite!r} belongs to no distribution this tool knows",
                    expected="a Debian or Ubuntu suite, such as trixie or noble",
                    remedy="correct suite: under bases: in configs/images",
                )
            self._roots[suite] = self._first_that_answers(suite, architecture, of)
        return self._roots[suite]

    def _first_that_answers(self, suite: str, architecture: str, of: str) -> AptRoot:
        """Try the declared mirrors in their order; when none answers, all of them are named."""
        refused = []
        for mirror in apt_mirrors(self.mirrors, suite).roots:
            try:
                return self._stack.enter_context(
                    private_apt(
                        suite, architecture, mirror, family=of, retries=self.mirrors.retries
                    )
                )
            except LockError as fault:
                refused.append(fault)
        raise LockError(
            found="\n  ".join(fault.found for fault in refused),
            expected="\n  ".join(fault.expected for fault in refused),
            remedy=refused[-1].remedy,
        )


def stand_in_base(
    name: str, wanted: StandInBase, roots: AptRoots, kept: Sequence[LockedFile] = ()
) -> Base:
    """Give the stand-in base: its packages from debootstrap's choice, its digest over them."""
    apt = roots.root(wanted.suite, wanted.architecture)
    apt.prefer(kept)
    packages = resolve_base(apt, read_package_list(REPOSITORY / wanted.packages))
    return Base(
        name=name,
        suite=wanted.suite,
        architecture=wanted.architecture,
        digest=package_list_digest(packages),
        python_tag=wanted.python_tag,
        torch=wanted.torch,
        glibc=wanted.glibc,
        packages=tuple(packages),
    )


def variant_closure(
    base: Base,
    installed: Sequence[LockedFile],
    names: Sequence[str],
    roots: AptRoots,
    kept: Sequence[LockedFile] = (),
) -> tuple[LockedFile, ...]:
    """Give what apt would add for a variant's packages to a base on which these are installed."""
    apt = roots.root(base.suite, base.architecture)
    apt.set_installed(installed_status(apt, [*base.packages, *installed]))
    return _closure(apt, names, kept)


def apt_closure(
    base: Base, wanted: Sequence[str], roots: AptRoots, kept: Sequence[LockedFile] = ()
) -> tuple[LockedFile, ...]:
    """Give what apt would add to a base for the wanted packages; kept versions stay where they fit."""
    apt = roots.root(base.suite, base.architecture)
    apt.set_installed(
        installed_status(apt, base.packages) if base.is_stand_in else _status_of_image(base)
    )
    return _closure(apt, wanted, kept)


def _closure(
    apt: AptRoot, names: Sequence[str], kept: Sequence[LockedFile]
) -> tuple[LockedFile, ...]:
    apt.prefer(kept)
    try:
        return tuple(apt.closure(names))
    except LockError:
        if not kept:
            raise
    apt.prefer(())  # the pins do not fit together any more: all are chosen anew, and are shown
    return tuple(apt.closure(names))


def _status_of_image(base: Base) -> str:
    """Read /var/lib/dpkg/status out of a registry base that an engine here holds."""
    import io
    import tarfile

    from docker.errors import ImageNotFound

    reference = base.reference
    try:
        client = engine_client(timeout_s=120)
        container = client.containers.create(reference, command=["true"], network_disabled=True)
        try:
            chunks, _ = container.get_archive("/var/lib/dpkg/status")
            with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
                handle = archive.extractfile(archive.getmembers()[0])
                assert handle is not None, "a file has content"
                return handle.read().decode("utf-8")
        finally:
            container.remove(force=True)
    except ImageNotFound as fault:
        raise _no_image(base, f"no engine here holds {reference}") from fault
    except NotReachable as fault:
        raise _no_image(base, str(fault)) from fault
    except client_faults() as fault:
        raise _no_image(
            base, f"the Docker engine could not give the base's package list: {fault}"
        ) from fault


def _no_image(base: Base, why: str) -> LockError:
    own = f"run `docker pull {base.reference}`, then `./inv lock --only ci`"
    ours = f"run `./inv fetch --base {base.name} --only base`, then `./inv lock --only apt`"
    return Unresolved(
        found=f"apt packages for base {base.name!r}: {why}",
        expected=f"an engine that holds the base, to see what is in it already (digest {base.digest or UNRESOLVED})",
        remedy=own if base.name == OWN else ours,
    )
