"""Component times of real-size layers beside their rooflines, with the engine's own modules on one GPU.

    python3 bench/engine_layers.py --folder DIR --output docs/evidence/engine-layers-h200.json

Needs what the engine needs on PYTHONPATH (docs/bundle.md). DIR gets a config and a tokenizer; weights are
random and made on the GPU. 64 sequences of 32,768 tokens take a decode step, one prompt of 4,096 a prefill.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, help="where the config is written")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--annotate", action="store_true", help="write OUTPUT's reasons anew, no GPU"
    )
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--context", type=int, default=32_768)
    parser.add_argument("--tokens", type=int, default=4_096)
    parser.add_argument("--seconds", type=float, default=300.0, help="time no component later")
    parser.add_argument("--commit", default="", help="commit of the tree, where git cannot tell")
    options = parser.parse_args()
    if options.annotate:
        return _annotate(options.output)
    if options.folder is None:
        parser.error("--folder is needed to measure")

    from dih20.errors import ToolError
    from dih20.layer_times.commit import commit_of_tree

    try:
        commit = commit_of_tree(options.commit)
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    from dih20.layer_times.measuring import measure
    from h20_ops.testing.machine import clocks_under_load, now, require_sm90, versions

    facts: dict[str, Any] = {
        "card": require_sm90(),
        "commit": commit,
        "date": now(),
        **versions(),
    }
    record: dict[str, Any] = {}

    def keep(content: dict[str, Any]) -> None:
        record.update(content)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(
            json.dumps({**facts, **content}, indent=1) + "\n", encoding="utf-8"
        )

    measure(
        options.folder,
        sequences=options.sequences,
        context=options.context,
        tokens=options.tokens,
        seconds=options.seconds,
        say=lambda line: print(line, flush=True),
        keep=keep,
    )
    facts["clocks"] = clocks_under_load()
    keep(record)
    for name, found in record["passes"].items():
        for layer in found["layers"]:
            print(f"{name}: layer {layer['layer']} ({layer['kind']}): {layer['us']} us")
            for row in layer["components"]:
                if row.get("times_bound", 9) > 2:
                    print("   ", row)
    return _tell(record)


def _annotate(path: Path) -> int:
    from dih20.layer_times.reasons import annotate

    record = json.loads(path.read_text(encoding="utf-8"))
    annotate(record)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return _tell(record)


def _tell(record: dict[str, Any]) -> int:
    """Print what the record leaves open; give the exit code."""
    from dih20.layer_times.reasons import open_questions

    questions = open_questions(record)
    for question in questions:
        print(question)
    return 1 if questions else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the engine's own end waits for barriers of process groups
