"""Take the picture of the status page that the guide shows.

    .venv/bin/python -m tests.serve.screenshot      writes docs/images/status-page.png

A real server over the paced engine, with streams running. No GPU is in the picture because the
machine has none.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from dih20.paths import REPOSITORY
from tests.serve.browser import Browser
from tests.serve.exchange import post
from tests.serve.running import Server

PICTURE = REPOSITORY / "docs" / "images" / "status-page.png"
STREAMS = 12
IDENTITIES = {"image": "di-h20:3f9c1e7a52d0", "patchset": "9a41d2c07b6e", "checkpoint": "canary"}


def main() -> None:
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    body = {"model": "canary", "prompt": "1 2 3", "max_tokens": 3000, "stream": True}
    request = post("/v1/completions", json.dumps(body).encode())
    options = {"step_ms": 50, "staggered": True, "echo": True}
    with (
        Server(Path(tempfile.mkdtemp()), engine_options=options, identities=IDENTITIES) as server,
        Browser() as browser,
    ):
        held = [server.connect() for _ in range(STREAMS)]
        for raw in held:
            raw.sendall(request)
        time.sleep(12)  # the rate is that of the last ten seconds
        browser.size(720, 760)
        browser.open(server.url)
        browser.screenshot(PICTURE)
        for raw in held:
            raw.close()
    print(f"{PICTURE}: {PICTURE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
