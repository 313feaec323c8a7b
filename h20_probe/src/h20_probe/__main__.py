"""`python -m h20_probe`: one JSON object on stdout, problems in three parts on stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from h20_probe import __version__, device, driver, nccl
from h20_probe.problems import Problem

ALL_PASSED, CHECK_FAILED, NO_CUDA = 0, 1, 2


def examine(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Problem]]:
    """Look at everything that can be looked at; give the report and the problems."""
    report: dict[str, Any] = {"probe": __version__}
    problems: list[Problem] = []
    try:
        cuda = driver.open_driver()
        driver.start(cuda)
        report["driver"] = driver.describe(cuda)
        library = device.open_library()
        report["cuda_runtime"] = device.runtime_version(library)
    except Problem as problem:
        return report, [problem]
    problems += _device_count(report["driver"]["devices"], arguments.expect_gpus)
    for entry in report["driver"]["devices"]:
        try:
            entry["kernel"] = device.run_kernel(library, entry["index"])
            entry["copy"] = device.copy_bandwidth(library, entry["index"], mib=arguments.mib)
        except Problem as problem:
            problems.append(problem)
    report["nccl"] = nccl.describe()
    problems += nccl.problems(report["nccl"], arguments.expect_nccl)
    return report, problems


def _device_count(devices: list[dict[str, Any]], expected: int | None) -> list[Problem]:
    if expected is None or len(devices) == expected:
        return []
    return [
        Problem(
            check="devices",
            found=f"{len(devices)} device(s)",
            expected=f"{expected} (--expect-gpus)",
            next="see `nvidia-smi -L` on the host and CUDA_VISIBLE_DEVICES in the container",
        )
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m h20_probe", description=__doc__)
    parser.add_argument(
        "--expect-gpus", type=int, help="fail unless exactly this many devices are seen"
    )
    parser.add_argument(
        "--expect-nccl", help="fail unless the mapped NCCL says this version, like 2.32.3"
    )
    parser.add_argument(
        "--mib", type=int, default=1024, help="size of the device copy (default 1024)"
    )
    report, problems = examine(parser.parse_args(argv))
    report["ok"] = not problems
    report["problems"] = [problem.as_dict() for problem in problems]
    json.dump(report, sys.stdout, indent=2)
    sys.stdout.write("\n")
    for problem in problems:
        print(problem, file=sys.stderr)
    if any(problem.stops for problem in problems):
        return NO_CUDA
    return CHECK_FAILED if problems else ALL_PASSED


if __name__ == "__main__":
    sys.exit(main())
