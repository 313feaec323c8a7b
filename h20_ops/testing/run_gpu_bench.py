"""Run benchmarks on the GPU at hand and write their results as JSON.

    python3 -m h20_ops.testing.run_gpu_bench                      every benchmark
    python3 -m h20_ops.testing.run_gpu_bench --only mla_decode
    python3 -m h20_ops.testing.run_gpu_bench --commit REV --results-dir DIR    outside a checkout

A result file is written only when its benchmark finished; a failing one leaves the old file alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from h20_ops.errors import EvidenceError, H20OpsError
from h20_ops.testing.bench import OPERATOR_OF, BenchRun, benchmarks, write_results
from h20_ops.testing.evidence import sources_of, sources_sha256
from h20_ops.testing.machine import (
    REPOSITORY,
    card_slug,
    clocks_under_load,
    commit_of,
    now,
    require_sm90,
    versions,
)
from h20_ops.testing.timing import copy_bandwidth_gbps


def load_measure(op: str, root: Path) -> Callable[[BenchRun], None]:
    """Return the function measure of bench/<op>.py."""
    path = root / "bench" / f"{op}.py"
    spec = importlib.util.spec_from_file_location(f"bench_{op}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise EvidenceError(
            f"{path.name} does not exist under bench/",
            "one module per benchmark with a function measure(bench)",
            "write it, or leave the benchmark out with --only",
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    measure: Callable[[BenchRun], None] = module.measure
    return measure


def run_benchmark(op: str, *, commit: str, folder: Path | None, root: Path) -> Path:
    """Measure one op and write its file; return the file's path."""
    card = require_sm90()
    run = BenchRun(op=op, card=card, copy_gbps=copy_bandwidth_gbps())
    load_measure(op, root)(run)
    facts = {
        "clocks": clocks_under_load(),
        "commit": commit,
        "date": now(),
        **versions(),
        "sources_sha256": sources_sha256(sources_of(OPERATOR_OF[op], root)),
    }
    path = (folder or root / "bench" / "results" / card_slug(card)) / f"{op}.json"
    write_results(path, run, facts)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="run_gpu_bench", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", action="append", choices=sorted(OPERATOR_OF))
    parser.add_argument("--commit", default="", help="commit of the tree, where git cannot tell")
    parser.add_argument("--results-dir", type=Path, help="where to write instead of the tree")
    options = parser.parse_args(arguments)
    try:
        print(f"card: {require_sm90()}")
        commit = commit_of(options.commit)
        for op in options.only or benchmarks(REPOSITORY):
            path = run_benchmark(op, commit=commit, folder=options.results_dir, root=REPOSITORY)
            print(f"{op}: results in {path}")
    except H20OpsError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
