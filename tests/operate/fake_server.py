"""A stand-in for `python -m dih20.serve` of the standard library alone, which acts as it is told.

ACT says how: well; slow (progress for a while, then ready); silent (lives, says nothing new);
dies (exit code 3); early (answers 200 at once, under another instance); mute (ready, and no
answer to a question); stubborn (ready, starts workers in sessions of their own, and all ignore TERM).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ACT = os.environ.get("FAKE_ACT", "well")
READY_AFTER_S = {"slow": 2.0, "dies": 1e9}.get(ACT, 0.2)
LOOKS: list[float] = []  # when the first look came: a start takes its time from then on


def age() -> float:
    LOOKS[:] = LOOKS or [time.monotonic()]
    return time.monotonic() - LOOKS[0]


def phase() -> str:
    if ACT == "silent":
        return "loading"
    return "ready" if age() >= READY_AFTER_S else "loading"


def about(settings: dict[str, Any]) -> dict[str, Any]:
    share = min(1.0, age() / READY_AFTER_S)
    line = "shard 1 of 9" if ACT == "silent" else f"shard {int(share * 9)} of 9"
    return {
        "instance": "another" if ACT == "early" else settings["instance"],
        "phase": "ready" if ACT == "early" else phase(),
        "elapsed_s": round(age(), 2),
        "eta_s": None,
        "fraction": 0.1 if ACT == "silent" else share,
        "progress_line": line,
        "reason": "",
    }


def completion() -> dict[str, Any]:
    steps = [("blue", -0.1), (" sky", -0.2), (".", -0.4)]
    content = [{"token": token, "logprob": value} for token, value in steps]
    message = {"role": "assistant", "content": "".join(token for token, _ in steps)}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": {"content": content},
        "finish_reason": "stop",
    }
    return {"choices": [choice], "usage": {"total_tokens": 3}}


def handler(settings: dict[str, Any]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def say(self, status: int, values: dict[str, Any]) -> None:
            body = json.dumps(values).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            values = about(settings)
            if self.path == "/readyz":
                values |= {"ready": values["phase"] == "ready", "gate": {"state": "passed"}}
                self.say(200 if values["ready"] else 503, values)
            elif self.path == "/v1/models":
                self.say(200, {"data": [{"id": settings["served_name"]}]})
            elif self.path == "/version":
                self.say(200, values | {"identities": settings["identities"]})
            elif self.path in ("/startupz", "/status.json"):
                self.say(200, values)
            else:
                self.say(404, {})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if ACT == "mute":
                self.say(503, {"error": {"message": "no engine behind this"}})
            else:
                self.say(200, completion())

    return Handler


def die() -> None:
    time.sleep(1.0)
    print("[rank 0] RuntimeError: CUDA driver version is insufficient", flush=True)
    os._exit(3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings")
    settings = json.loads(Path(parser.parse_args().settings).read_text())
    print(f"[serve] instance {settings['instance']} acts {ACT}", flush=True)
    if ACT == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        worker = (
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        )
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", worker], start_new_session=True)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server = ThreadingHTTPServer((settings["host"], settings["port"]), handler(settings))
    file = Path(settings["port_file"])
    draft = file.with_suffix(".part")
    draft.write_text(json.dumps({"port": server.server_port}))
    draft.replace(file)
    if ACT == "dies":
        threading.Thread(target=die, daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
