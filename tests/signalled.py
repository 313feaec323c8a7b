"""Send this process SIGTERM at the moment a test waits for."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def signalled(when: Callable[[], object], timeout_s: float = 20) -> Iterator[None]:
    """Send SIGTERM once `when` holds while the body runs; code that does not take it goes on undisturbed."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    over = threading.Event()

    def watch() -> None:
        until = time.monotonic() + timeout_s
        while not over.wait(0.1) and time.monotonic() < until:
            if when():
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGTERM, before)
