"""python -m dih20.engine_check: what `./inv engine-check` does, without the packages that it needs."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dih20.engine_check.options import Options, add_arguments, from_namespace
from dih20.errors import INTERRUPTED, TestsFailed, ToolError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dih20.engine_check", description=__doc__)
    add_arguments(parser)
    parser.add_argument(
        "--prepare", action="store_true", help="compute the reference's values, and stop"
    )
    parser.add_argument(
        "--merge", action="store_true", help="write the evidence from the records, and stop"
    )
    parser.add_argument("--json", action="store_true", help="print the records as JSON")
    for hidden in ("--worker", "--letters", "--name", "--faults"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    parser.add_argument("--judge", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop)  # so that engines end with this process
    options = from_namespace(given)
    try:
        if given.worker:
            return _work(options, given)
        if given.judge:
            return _judge(options)
        result = act(options, print_line, prepare=given.prepare, merge=given.merge)
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command takes it up again", file=sys.stderr)
        return INTERRUPTED
    if given.json:
        print(json.dumps(result, ensure_ascii=False))
    return 0


def _stop(*_: Any) -> None:
    from dih20.engine_check.processes import STOP

    STOP.set()
    sys.exit(143)


def print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def act(options: Options, say: Any, *, prepare: bool, merge: bool) -> dict[str, Any]:
    """Prepare, merge or check; raise TestsFailed when a chosen stage did not pass."""
    from dih20.engine_check import reference

    if prepare:
        values = reference.prepare(options.reference)
        say(
            f"{len(values.questions)} questions, {len(values.long) + len(values.mixed)} long prompts: {options.reference}"
        )
        return {"prepared": str(options.reference), "key": reference.key()}
    if merge:
        from dih20.engine_check.merging import merge_records

        return merge_records(options.folder, say)
    from dih20.engine_check.canary_folder import ensure_checkpoint
    from dih20.engine_check.running import Check

    options.folder.mkdir(parents=True, exist_ok=True)
    ensure_checkpoint(options)
    records = Check(options, say).run()
    failed = [
        f"{each['stage']} {each['verdict']}" for each in records if each["verdict"] != "passed"
    ]
    verdicts = {each["stage"]: each["verdict"] for each in records}
    if failed:
        raise TestsFailed(
            found=f"engine-check: {', '.join(failed)}",
            expected="every chosen stage passed",
            remedy=f"read stage-*.json and log-*.txt in {options.folder}",
            details={"verdicts": verdicts},
        )
    return {"verdicts": verdicts, "folder": str(options.folder)}


def _work(options: Options, given: argparse.Namespace) -> int:
    from dih20.engine_check import here, reference
    from dih20.engine_check.canary_folder import ensure_checkpoint
    from dih20.engine_check.context import Context
    from dih20.engine_check.worker import mark, run_stages

    mark(options.folder, given.name, "start")
    checkpoint = ensure_checkpoint(options)
    facts = here.told(options.folder, options.tree_folder)
    context = Context(
        options=options,
        work=options.folder,
        checkpoint=checkpoint,
        values=reference.load(options.reference),
        sources=facts["sources"],
        faults=tuple(given.faults.split(",")) if given.faults else (),
    )

    def make() -> Any:
        from dih20.engine_check.engine_driver import EngineDriver

        return EngineDriver(given.worker, checkpoint, options.memory)

    code = 1
    try:
        code = run_stages(make, given.letters, given.worker, context, facts, given.name)
    except BaseException:  # noqa: BLE001 - an engine that does not start may raise anything
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # what the engine has started must not keep the process


def _judge(options: Options) -> int:
    from dih20.engine_check import reference
    from dih20.engine_check.canary_folder import ensure_checkpoint
    from dih20.engine_check.judge import judge

    judge(options.folder, ensure_checkpoint(options), reference.load(options.reference))
    return 0


if __name__ == "__main__":
    root = str(Path(__file__).resolve().parents[2])
    if root not in sys.path:
        sys.path.insert(0, root)
    sys.exit(main())
