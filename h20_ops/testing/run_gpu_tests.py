"""Run the operators' GPU tests with pytest and record each operator's results.

    python3 -m h20_ops.testing.run_gpu_tests                        every operator
    python3 -m h20_ops.testing.run_gpu_tests --only sparse_mla_decode
    python3 -m h20_ops.testing.run_gpu_tests --select "page and not far"   no record is written
    python3 -m h20_ops.testing.run_gpu_tests --commit REV --evidence-dir DIR    outside a checkout

Needs torch with an SM90 GPU, nvcc for the first run, and pytest; no network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from h20_ops.errors import EvidenceError, H20OpsError
from h20_ops.testing import outcomes
from h20_ops.testing.evidence import (
    OPERATOR_SOURCES,
    evidence_path,
    gpu_test_path,
    operators,
    write_evidence,
)
from h20_ops.testing.machine import REPOSITORY, commit_of, now, require_sm90, versions


def run_operator(operator: str, *, select: str, commit: str, target: Path, root: Path) -> bool:
    """Run one operator's tests; write its record unless only some were selected. True if good."""
    test_file = gpu_test_path(operator, root)
    if not test_file.is_file():
        raise EvidenceError(
            f"{test_file.name} does not exist", "a GPU test file per operator", "write it"
        )
    code, results = run_pytest(test_file, root, select)
    passed = code == 0 and set(results.values()) == {"passed"}
    if select:
        print(f"{operator}: {len(results)} selected tests, exit {code}, no record written")
        return passed
    facts = {"card": require_sm90(), **versions(), "commit": commit, "date": now()}
    write_evidence(target, operator=operator, results=results, root=root, facts=facts)
    print(f"{operator}: {len(results)} tests, exit {code}, recorded in {target}")
    return passed


def run_pytest(test_file: Path, root: Path, select: str) -> tuple[int, dict[str, str]]:
    """Run a file's gpu tests in a process of its own; return its exit code and the outcomes.

    A kernel that faults takes the CUDA context of its process with it, and with it every later test.
    """
    # The GPU machine may lack what the repository's own pytest settings and fixtures need.
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(root)]
    command += ["--confcutdir", str(test_file.parent), "--import-mode=importlib", "-m", "gpu"]
    command += ["-o", "markers=gpu: needs a Hopper GPU", "-p", "h20_ops.testing.outcomes", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "no:benchmark", str(test_file)]
    command += ["-k", select] if select else []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.json"
        ours = [str(REPOSITORY), *map(str, sorted(REPOSITORY.glob("dropins/*")))]
        path = os.pathsep.join(filter(None, [*ours, os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, outcomes.VARIABLE: str(file), "PYTHONPATH": path}
        code = subprocess.run(command, env=environment, check=False).returncode
        if not file.is_file():
            return code, {f"{test_file.name} to its end": "failed"}
        results: dict[str, str] = json.loads(file.read_text())
    return code, results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="run_gpu_tests", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", action="append", choices=sorted(OPERATOR_SOURCES))
    parser.add_argument("--select", default="", help="pytest -k expression; nothing is recorded")
    parser.add_argument("--commit", default="", help="commit of the tree, where git cannot tell")
    parser.add_argument("--evidence-dir", type=Path, help="where to write instead of the tree")
    options = parser.parse_args(arguments)
    try:
        print(f"card: {require_sm90()}")
        commit = "" if options.select else commit_of(options.commit)
        good = True
        for operator in options.only or operators(REPOSITORY):
            target = evidence_path(operator, REPOSITORY)
            if options.evidence_dir is not None:
                target = options.evidence_dir / target.name
            good &= run_operator(
                operator, select=options.select, commit=commit, target=target, root=REPOSITORY
            )
    except H20OpsError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
