"""Keep builds apart and their ends clean: one build at a time on an engine, SIGTERM like an interrupt."""

from __future__ import annotations

import fcntl
import hashlib
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dih20.errors import ImageError
from dih20.paths import cache_dir

if TYPE_CHECKING:
    import docker


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """Let SIGTERM end the build the way an interrupt does, so that its container is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def only_build(client: docker.DockerClient) -> Iterator[str]:
    """Let one build of this cache at a time work on an engine; give the name of this guard's holders.

    What is left over under that name is really left over. Another machine's build on the same engine
    has another cache, hence another name.
    """
    info = client.info()  # engines on one machine may share an ID (Docker 20.10), never a data root
    engine = f"{info.get('ID')} {info.get('DockerRootDir')}"
    name = hashlib.sha256(engine.encode()).hexdigest()[:12]
    folder = cache_dir() / "builds"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.guard").open("a+") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ImageError(
                found="another image build runs on this engine",
                expected="one at a time",
                remedy="wait for it to end, then run the command again",
            ) from None
        guard.seek(0)
        holder = guard.read()
        if not holder:
            holder = secrets.token_hex(4)
            guard.write(holder)
            guard.flush()
        yield holder
