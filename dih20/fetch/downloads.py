"""Put locked files into the cache: what is missing is asked for, in the declared order, and verified."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.config.mirrors import Mirrors
from dih20.console import Console
from dih20.errors import FetchError, HashMismatch, ToolError
from dih20.fetch import cache
from dih20.fetch.origins import Origin, Origins
from dih20.fetch.transfer import NoTransfer, transfer
from dih20.index.session import open_session
from dih20.lock.files import LockedFile
from dih20.lock.newer_debs import newer_debs
from dih20.plan import Action, Plan

if TYPE_CHECKING:
    import requests

_AT_ONCE = 8
_LARGE = 32 << 20  # a file of this size gets a line of its own


def make_plan(files: Sequence[LockedFile], title: str = "fetch") -> Plan:
    """Give an action per file; those in the cache are done already."""
    actions = [
        Action(
            verb="fetch",
            target=f"{file.filename} ({file.size_bytes / 1e6:.1f} MB)",
            why="in the cache" if cache.is_cached(file) else "",
            needed=not cache.is_cached(file),
            details={"sha256": file.sha256, "size_bytes": file.size_bytes},
        )
        for file in distinct(files)
    ]
    return Plan(title=title, actions=tuple(actions))


def distinct(files: Sequence[LockedFile]) -> list[LockedFile]:
    """Give each content once, in the given order; groups share files."""
    return list({(file.sha256, file.filename): file for file in files}.values())


def fetch_files(
    ui: Console, files: Sequence[LockedFile], mirrors: Mirrors, *, what: str = "files"
) -> None:
    """Put every file into the cache. All that fail are named; those that came stay."""
    wanted = distinct(files)
    missing = [file for file in wanted if not cache.is_cached(file)]
    total = sum(file.size_bytes for file in missing)
    with ui.step("fetch", f"{what} ({len(wanted)})") as step:
        if not missing:
            step.status, step.note = "hit", "all in the cache"
            return
        origins = Origins(mirrors)
        for line in origins.describe(missing):
            ui.line(f"  {line}", style="dim")
        with ui.progress(f"{len(missing)} {what}", total=total) as advance:
            _fetch_all(missing, _Fetcher(origins, mirrors, advance))
        step.status = "miss"
        step.note = f"{len(missing)} fetched, {total / 1e6:.1f} MB; {len(wanted) - len(missing)} were in the cache"


@dataclass
class _Fetcher:
    """Fetch one file at a time; called from several threads."""

    origins: Origins
    mirrors: Mirrors
    advance: Callable[[float], None]
    _local: threading.local = field(default_factory=threading.local)

    def fetch(self, file: LockedFile) -> Path:
        with cache.only_one(file) as partial:
            if cache.is_cached(file):
                self.advance(file.size_bytes)
                return cache.cached(file)
            refused = []
            session = self._session(file)
            for origin in self.origins.of(file):
                try:
                    self._complete(session, origin, file, partial)
                except NoTransfer as fault:
                    refused.append(f"{origin.place}: {fault}")
                    continue
                return cache.keep(partial, file)
        raise self._nowhere(file, refused)

    def _complete(
        self, session: requests.Session, origin: Origin, file: LockedFile, partial: Path
    ) -> None:
        """Fetch and verify; what an earlier run left is dropped when it turns out to be bad."""
        leftover = partial.exists() and partial.stat().st_size > 0
        options: dict[str, Any] = {
            "timeout_s": self.mirrors.timeout_s,
            "retries": self.mirrors.retries,
        }
        transfer(session, origin, file, partial, advance=self.advance, **options)
        try:
            self._check(partial, file, origin.place)
        except HashMismatch:
            if not leftover:
                raise
            self.advance(-file.size_bytes)
            transfer(session, origin, file, partial, advance=self.advance, **options)
            self._check(partial, file, origin.place)

    def _session(self, file: LockedFile) -> requests.Session:
        """Give this thread's session for a kind of file, so that its connections are kept open."""
        sessions = vars(self._local).setdefault("sessions", {})
        if file.kind not in sessions:
            sessions[file.kind] = open_session(self.mirrors, ca_bundle=self._pip_bundle(file))
        session: requests.Session = sessions[file.kind]
        return session

    def _pip_bundle(self, file: LockedFile) -> str | None:
        if file.kind == "deb":
            return None
        verify = self.origins.indexes.session.verify
        return verify if isinstance(verify, str) else None

    def _check(self, partial: Path, file: LockedFile, place: str) -> None:
        try:
            cache.verify(partial, file)
        except HashMismatch as fault:
            partial.unlink()
            raise HashMismatch(
                found=f"{file.filename} from {place}: {fault.found.split(': ', 1)[1]}",
                expected=fault.expected,
                remedy="that place serves stale or other files: take it out of configs/mirrors.yaml, or find out "
                "what changed before `./inv lock --upgrade` accepts it; nothing was kept",
            ) from fault

    def _nowhere(self, file: LockedFile, refused: list[str]) -> FetchError:
        stale = file.kind == "deb" and any("answered 404" in text for text in refused)
        remedy = (
            f"mirrors drop superseded packages: run `{newer_debs('BASE')}`, or name a mirror that keeps them under "
            f"apt: {file.suite}: in configs/mirrors.yaml"
            if stale
            else "check the network, proxy and ca_bundle in configs/mirrors.yaml, or name another mirror there; "
            "what has come so far is kept and taken up again"
        )
        return FetchError(
            found=f"{file.filename} cannot be had: " + "; ".join(refused),
            expected=f"{file}, sha256 {file.sha256[:12]}..., from a declared mirror or index; no other is asked",
            remedy=remedy,
        )


class _Stopped(Exception):
    """Ends a transfer in its thread once the user has interrupted the run."""


def _fetch_all(files: Sequence[LockedFile], fetcher: _Fetcher) -> None:
    faults: list[ToolError] = []
    stop = threading.Event()
    fetcher = replace(fetcher, advance=_until(stop, fetcher.advance))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        # the largest first, so that the end is not one long file
        jobs = [pool.submit(fetcher.fetch, f) for f in sorted(files, key=lambda f: -f.size_bytes)]
        try:
            for job in as_completed(jobs):
                fault = job.exception()
                if isinstance(fault, ToolError):
                    faults.append(fault)
                elif fault is not None:
                    raise fault
        except BaseException:
            stop.set()  # what runs ends at its next block, and keeps what has come so far
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if faults:
        raise _together(faults)


def _until(stop: threading.Event, advance: Callable[[float], None]) -> Callable[[float], None]:
    def guarded(amount: float) -> None:
        if stop.is_set():
            raise _Stopped
        advance(amount)

    return guarded


def _together(faults: list[ToolError]) -> ToolError:
    """Give one error that names every file that failed; a wrong hash outranks a missing file."""
    first = next((f for f in faults if isinstance(f, HashMismatch)), faults[0])
    if len(faults) == 1:
        return first
    shown = faults[:10]
    more = f"\n  and {len(faults) - len(shown)} more" if len(faults) > len(shown) else ""
    return type(first)(
        found=f"{len(faults)} files failed:\n  " + "\n  ".join(f.found for f in shown) + more,
        expected=first.expected,
        remedy=first.remedy,
    )
