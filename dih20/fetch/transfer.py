"""Move one file's bytes from one address into a partial file; a broken transfer is taken up again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from dih20.fetch.origins import Origin
from dih20.index.session import plain_reason
from dih20.lock.files import LockedFile

if TYPE_CHECKING:
    import requests

_CHUNK = 1 << 17  # small enough for progress to move on a slow line


class NoTransfer(Exception):
    """This address did not give the file; its text says why. The next one is asked."""


def transfer(
    session: requests.Session,
    origin: Origin,
    file: LockedFile,
    partial: Path,
    *,
    timeout_s: float,
    retries: int,
    advance: Callable[[float], None],
) -> None:
    """Complete the partial file from one address; what it holds already is not asked for again.

    A connection that breaks off is taken up where it stopped, as often as `retries` says.
    """
    if urlsplit(origin.url).scheme == "file":
        _copy(Path(unquote(urlsplit(origin.url).path)), partial, advance)
        return
    if partial.exists():
        advance(partial.stat().st_size)
    for attempt in range(retries + 1):
        why = _once(session, origin.url, file, partial, timeout_s, advance)
        if why is None:
            return
        if attempt == retries:
            raise NoTransfer(
                f"broken off {attempt + 1} times, {partial.stat().st_size} of {file.size_bytes} bytes: {why}"
            )


def _once(
    session: requests.Session,
    url: str,
    file: LockedFile,
    partial: Path,
    timeout_s: float,
    advance: Callable[[float], None],
) -> str | None:
    import requests

    have = partial.stat().st_size if partial.exists() else 0
    if have >= file.size_bytes:
        return None
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        with session.get(url, headers=headers, stream=True, timeout=timeout_s) as answer:
            if answer.status_code not in (200, 206):
                raise NoTransfer(f"it answered {answer.status_code} {answer.reason}")
            resumed = answer.status_code == 206
            advance(0 if resumed else -have)
            with partial.open("ab" if resumed else "wb") as out:
                for chunk in answer.iter_content(_CHUNK):
                    out.write(chunk)
                    advance(len(chunk))
    except requests.exceptions.RequestException as fault:
        if not partial.exists() or partial.stat().st_size == have:
            raise NoTransfer(plain_reason(fault)) from fault
        return plain_reason(fault)
    size = partial.stat().st_size
    return None if size >= file.size_bytes else f"the server ended after {size} bytes"


def _copy(source: Path, partial: Path, advance: Callable[[float], None]) -> None:
    if not source.is_file():
        raise NoTransfer("no such file")
    shutil.copyfile(source, partial)
    advance(partial.stat().st_size)
