"""The known answers of a real model: questions go to the container, ids of a good run come home."""

from __future__ import annotations

import hashlib
import json

from dih20.console import Console
from dih20.operate.hosted import HostServer
from dih20.operate.serving import ANSWERS, KNOWN_IDS, RECORDED
from dih20.paths import configs_dir, shown
from dih20.serve.gate.questions import load_answers

QUESTIONS, IDS = "answers.yaml", "answers-recorded.json"


def send_answers(server: HostServer) -> None:
    """Put questions, and ids where some were recorded, into the container's folder."""
    questions = load_answers(configs_dir() / QUESTIONS).model_dump(mode="json")
    server.write(ANSWERS, json.dumps(questions, ensure_ascii=False, indent=1).encode())
    ids = configs_dir() / IDS
    server.write(KNOWN_IDS, ids.read_bytes() if ids.is_file() else _NOTHING)


_NOTHING = b'{"origin": {}, "recordings": {}}'


def bring_answers(ui: Console, server: HostServer) -> str:
    """Give where the ids of this run are now, in the configuration."""
    target = configs_dir() / IDS
    with ui.step("record", shown(target)):
        server.session.runner.get(f"{server.folder}/{RECORDED}", target, ui)
    return shown(target)


def checkpoint_identity(server: HostServer, model: str | None) -> str:
    """Give the sha256 over config.json and index of the checkpoint as the container sees it; "" for the canary."""
    if model is None:
        return ""
    names = ("config.json", "model.safetensors.index.json")
    done = server.run(["sha256sum", "--", *(f"{model}/{name}" for name in names)])
    if done is None or done.exit_code != 0:
        return ""
    sums = [line.split()[0] for line in done.output.decode().splitlines()]
    return hashlib.sha256(" ".join(sums).encode()).hexdigest()
