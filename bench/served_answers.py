"""Start the server with an engine and the canary, ask it over HTTP, and write what it answered.

    python3 bench/served_answers.py --model DIR --ranks 2 --values FILE --output FILE

DIR is a canary folder, for the engine deepinfer with a vision shard (`v41/canary/vision_shard.py`); FILE of
--values is what `inv engine-check --prepare` wrote. Needs the server's packages and, for deepinfer, its
environment (the bundle's env.sh). Exit code 1 when an answer is wrong or the server does not end with 0.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OPTIONS = {"max_model_len": 1024, "max_num_seqs": 16, "max_num_batched_tokens": 1024}
_SMALL = {"gpu_memory_utilization": 0.06}  # the canary's weights are a few MB
_STOP_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server process and its address."""

    process: subprocess.Popen[bytes]
    url: str

    def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        """Give status and text; 0 while nobody listens."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, headers={"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()
        except OSError:
            return 0, ""

    def wait(self, limit: float) -> float | None:
        """Give the seconds until it was ready; None when it ended, or the limit passed."""
        start = time.monotonic()
        while time.monotonic() - start < limit and self.process.poll() is None:
            if self.ask("/readyz")[0] == 200:
                return round(time.monotonic() - start, 1)
            time.sleep(0.25)
        return None

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def start(folder: Path, given: argparse.Namespace) -> Server:
    settings: dict[str, Any] = {"engine": given.engine, "port": 0, "ranks": given.ranks}
    settings |= {"port_file": str(folder / "port.json"), "state_dir": str(folder / "state")}
    if given.engine == "deepinfer":
        settings |= {
            "model": str(given.model.resolve()),
            "environment": {"DEEPINFER_USE_NEXTN_DECODE": "0"},
            "engine_options": {"expert_parallel_size": given.ranks, **_OPTIONS, **_SMALL},
        }
    (folder / "settings.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "dih20.serve", "--settings", str(folder / "settings.json")]
    log = (folder / "server.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    port = folder / "port.json"
    while not port.exists() and process.poll() is None:
        time.sleep(0.05)
    address = json.loads(port.read_text()) if port.exists() else {"port": 0}
    return Server(process=process, url=f"http://127.0.0.1:{address['port']}")


def chats(server: Server, limit: int) -> dict[str, Any]:
    """Ask the canary's questions all at once."""
    from v41.canary.questions import QUESTIONS

    asked = QUESTIONS[:limit]

    def one(question: Any) -> str:
        body = {
            "model": "canary",
            "messages": [{"role": "user", "content": question.question}],
            "temperature": 0,
            "max_tokens": 10,
        }
        status, text = server.ask("/v1/chat/completions", body)
        return json.loads(text)["choices"][0]["message"]["content"] if status == 200 else text

    began = time.monotonic()
    with ThreadPoolExecutor(len(asked)) as pool:
        got = list(pool.map(one, asked))
    seconds = round(time.monotonic() - began, 2)
    pairs = list(zip(asked, got, strict=True))
    wrong = [[q.question, q.answer, text] for q, text in pairs if text.strip() != q.answer.strip()]
    right = len(asked) - len(wrong)
    return {"right": right, "asked": len(asked), "seconds": seconds, "wrong": wrong}


def long_prompts(server: Server, values: Path, longest: int) -> list[dict[str, Any]]:
    """Ask for the first token of long prompts, together; its log-prob beside the reference's."""
    cases = json.loads(values.read_text(encoding="utf-8"))["values"]["long"]
    cases = [case for case in cases if len(case["prompt"]) <= longest]

    def one(case: dict[str, Any]) -> dict[str, Any]:
        body = {"model": "canary", "prompt": case["prompt"], "max_tokens": 1, "logprobs": 1}
        status, text = server.ask("/v1/completions", {**body, "temperature": 0})
        if status != 200:
            return {"name": case["name"], "status": status, "text": text}
        found = json.loads(text)["choices"][0]["logprobs"]["token_logprobs"][0]
        return {"name": case["name"], "log_prob": found, "reference": case["logprobs"][0]}

    with ThreadPoolExecutor(max(len(cases), 1)) as pool:
        return list(pool.map(one, cases))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="served_answers", description=(__doc__ or "")[:87])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--engine", choices=("deepinfer", "reference"), default="deepinfer")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--values", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--ready-s", type=float, default=300.0)
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--longest", type=int, default=1000, help="tokens of a long prompt")
    given = parser.parse_args(arguments)
    if given.engine == "deepinfer" and (given.model is None or not given.model.is_dir()):
        parser.error("--model: the folder of the canary with a vision shard")
    if not given.values.is_file():
        parser.error(f"--values: no file {given.values}; inv engine-check --prepare writes it")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = start(folder, given)
        record: dict[str, Any] = {"engine": given.engine, "ranks": given.ranks}
        try:
            record["seconds_to_ready"] = server.wait(given.ready_s)
            if record["seconds_to_ready"] is not None:
                record["chats"] = chats(server, given.questions)
                record["long_prompts"] = long_prompts(server, given.values, given.longest)
        finally:
            record["exit_code"] = server.stop()
        if record["seconds_to_ready"] is None or record["exit_code"]:
            log = (folder / "server.log").read_text(encoding="utf-8", errors="replace")
            print(log[-6000:], file=sys.stderr)
    given.output.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n")
    print(json.dumps(record, ensure_ascii=False))
    return 0 if passed(record) else 1


def passed(record: dict[str, Any], *, apart: float = 0.02) -> bool:
    """Whether every answer is right, every first token as likely as the reference says."""
    if record["exit_code"] or record["seconds_to_ready"] is None:
        return False
    tokens = record["long_prompts"]
    near = [abs(t["log_prob"] - t["reference"]) <= apart for t in tokens if "log_prob" in t]
    answered = record["chats"]["right"] == record["chats"]["asked"] > 0
    return answered and len(near) == len(tokens) > 0 and all(near)


if __name__ == "__main__":
    sys.exit(main())
