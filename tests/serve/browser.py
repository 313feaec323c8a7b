"""A headless Chromium, driven over its debugging pipe: no port, no driver program."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAMS = ("chromium", "google-chrome")
ANSWER_TIMEOUT_S = 60.0


class Browser:
    """One page of a Chromium of its own."""

    def __init__(self) -> None:
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        assert program is not None, (
            f"none of {', '.join(PROGRAMS)} on the PATH: ci/host-setup.sh installs chromium on "
            "Debian; Ubuntu has it as a snap only, so install google-chrome there"
        )
        self._profile = tempfile.mkdtemp(prefix="dih20-chromium-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        flags += ["--disable-background-networking", "--no-first-run", "--disable-dev-shm-usage"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={self._profile}", "about:blank"]
        # Chromium reads commands from descriptor 3 and answers on 4; 10 and up are free in a shell
        plumbing = ["bash", "-c", f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"', "bash"]
        self._process = subprocess.Popen(
            [*plumbing, program, *flags],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._unread = b""
        self._last_id = 0
        self._session = ""
        self.requests: list[str] = []  # every address the page asked for
        self.complaints: list[str] = []  # what the page wrote to its console, errors included

    def __enter__(self) -> Self:
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._out)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, url: str) -> None:
        self.requests.clear()
        self.complaints.clear()
        answer = self._call("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, element_id: str) -> str:
        return str(self.evaluate(f"document.getElementById({element_id!r}).textContent.trim()"))

    def wait_for(self, expression: str, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {expression}"
            time.sleep(0.1)

    def size(self, width: int, height: int) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def scripts(self, *, run: bool) -> None:
        self._call("Emulation.setScriptExecutionDisabled", value=not run)

    def scheme(self, name: str) -> None:
        """Prefer light or dark colours."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self._call("Emulation.setEmulatedMedia", features=[feature])

    def accessible(self) -> list[tuple[str, str]]:
        """Give role and name of everything that a screen reader is told."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]

    def screenshot(self, path: Path) -> None:
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **params: Any) -> Any:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            answer = self._next_message(deadline, method)
            if answer.get("id") == self._last_id:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _next_message(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"Chromium did not answer {method}"
            data = os.read(self._in, 1 << 20)
            assert data, f"Chromium ended during {method}, exit code {self._process.poll()}"
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event["method"] == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
