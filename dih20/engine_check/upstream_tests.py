"""Stage a: upstream's own tests of the operators that the port keeps, file by file, on this GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dih20.engine_check import results
from dih20.engine_check.counting import counted, judged
from dih20.engine_check.options import Options
from dih20.engine_check.processes import check_stop
from dih20.engine_check.sources import engine_folder
from dih20.engine_check.stages import stage
from dih20.paths import REPOSITORY

MOST_WORKERS = 3  # they share one card
LOOP_CASES = 4  # of each loop in DeepGEMM's tests: every case compiles a kernel
_TILELANG = (
    "store_kv_cache", "load_paged_kv_cache", "fused_transform", "norm", "compress", "gather",
    "candidate_blocks", "swa_index", "get_kv_index", "kv_index_cat", "flash_mla_utils", "fused_sample",
    "state_cache",
)  # fmt: skip
# What the port calls on SM90: the rest of these files is for other GPUs, or for training.
_DEEP_GEMM = {
    "test_fp8_fp4.py": ("test_gemm", "test_m_grouped_gemm_contiguous"),
    "test_bf16.py": ("test_gemm",),
    "test_einsum.py": ("test_fp8_bhr_hdr_bhd",),
    "test_hyperconnection.py": ("test_hc_prenorm_gemm",),
    "test_layout.py": ("test_sf_layout_kernels",),
}
# These make their cases by modules that upstream's source distribution leaves out.
_NEED_GENERATORS = ("test_fp8_fp4.py", "test_bf16.py", "test_layout.py")
NOT_SHIPPED = Path(__file__).with_name("not_shipped")


@dataclass(frozen=True, kw_only=True)
class TestFile:
    """only: names of its test functions; all of them when it is empty. loops: cases of each loop inside."""

    __test__ = False  # its name looks like a test case to pytest

    name: str
    path: Path
    only: tuple[str, ...] = ()
    loops: int = 0


def run_upstream_tests(
    options: Options, work: Path, here: dict[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    """Run every file, write the stage's record, and give it."""
    begun = time.monotonic()
    files = [file for file in _files(options) if options.only in file.name]
    limit = options.tests_limit * options.limits
    rows = run_files(files, options.take, options.workers, limit, work)
    reasons = judged(rows)
    if not files:
        reasons.append(
            "no test file of upstream was found: give --upstream and put deepinfer on the path"
        )
    verdict = results.FAILED if reasons else results.PASSED
    if options.only and not reasons:
        verdict, reasons = results.NOT_RUN, [f"only files with {options.only!r} in their names ran"]
    record = results.record(
        "a",
        verdict,
        here=here,
        numbers={
            "one_in": options.take,
            "only": options.only,
            "limit_s": limit,
            "files": rows,
            "not_run": not_shipped(options),
        },
        reason="; ".join(reasons),
        seconds=time.monotonic() - begun,
    )
    results.write_json(results.record_path(work, "a"), record)
    for name, row in rows.items():
        counts = ", ".join(f"{row[key]} {key}" for key in ("passed", "failed", "known", "skipped"))
        say(f"  {name}: {counts}{', cut at the limit' if row['cut'] else ''}")
    say(f"a {record['verdict']}  {stage('a').title}  {record['reason'][:300]}")
    return record


def _files(options: Options) -> Iterator[TestFile]:
    tree = options.tree_folder or engine_folder()
    if tree is not None:
        for name in _TILELANG:
            path = tree / f"deepinfer/model_executor/layers/tilelang_ops/{name}.py"
            if path.is_file():
                yield TestFile(name=f"{name}.py", path=path)
    folder = Path(options.upstream) if options.upstream else None
    for name, only in _DEEP_GEMM.items():
        found = _found(folder, name)
        if found and name not in not_shipped(options):
            yield TestFile(name=name, path=found[0], only=only, loops=LOOP_CASES)


def _found(folder: Path | None, name: str) -> list[Path]:
    return sorted(folder.rglob(name)) if folder is not None and folder.is_dir() else []


def not_shipped(options: Options) -> dict[str, str]:
    """Give the files of DeepGEMM that cannot run, and why; none for a checkout that has all."""
    folder = Path(options.upstream) if options.upstream else None
    why = "makes its cases by generators.py, which the source distribution leaves out"
    found = {name: _found(folder, name) for name in _NEED_GENERATORS}
    return {
        name: why
        for name, paths in found.items()
        if paths and not (paths[0].parent / "generators.py").is_file()
    }


def run_files(
    files: Sequence[TestFile], take: int, workers: int, limit_s: float, work: Path
) -> dict[str, dict[str, Any]]:
    """Run files in a few processes at once under one limit; give counts for each file.

    A process takes the tests of its files in turn, so that a cut leaves each some.
    """
    count = min(max(workers, 1), MOST_WORKERS)
    shares = _shares(files, count)
    for number in range(len(shares)):
        _lines_path(work, number).unlink(missing_ok=True)
    ended = _run_shares(shares, take, count, limit_s, work)
    rows = {}
    for number, (share, (code, cut)) in enumerate(zip(shares, ended, strict=True)):
        lines = _lines(_lines_path(work, number))
        for file in share:
            row = counted(lines, file.name, code, cut)
            rows[file.name] = row | {"only": list(file.only), "loop_cases": file.loops}
    return {file.name: rows[file.name] for file in files}


def _run_shares(
    shares: Sequence[Sequence[TestFile]], take: int, count: int, limit_s: float, work: Path
) -> list[tuple[int, bool]]:
    """Run a process for each share, `count` at once; give its exit code, and whether it was cut.

    One that the limit did not let begin was cut as well.
    """
    running: list[subprocess.Popen[bytes]] = []
    begun = time.monotonic()
    try:
        while time.monotonic() - begun <= limit_s:
            check_stop()
            free = count - sum(each.poll() is None for each in running)
            for share in shares[len(running) : len(running) + free]:
                running.append(_start(share, take, work, len(running)))
            if all(each.poll() is not None for each in running) and len(running) == len(shares):
                break
            time.sleep(0.1)
    finally:
        cut = [each.poll() is None for each in running]
        for each in running:
            each.kill()
            each.wait()
    ended = [(each.returncode, late) for each, late in zip(running, cut, strict=True)]
    return ended + [(0, True)] * (len(shares) - len(running))


def _shares(files: Sequence[TestFile], count: int) -> list[list[TestFile]]:
    """Deal files to processes: one for each of DeepGEMM's, and what is left of `count` for the others.

    Each of DeepGEMM's is one function over all its cases: two in one process run one after the other.
    """
    alone = [[file] for file in files if file.loops]
    others = [file for file in files if not file.loops]
    parts = max(count - len(alone), 1)
    return [*(others[place::parts] for place in range(parts) if others[place::parts]), *alone]


def _lines_path(work: Path, number: int) -> Path:
    return work / "upstream" / f"tests-{number}.jsonl"


def _lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _start(
    share: Sequence[TestFile], take: int, work: Path, number: int
) -> subprocess.Popen[bytes]:
    lines, folder = _lines_path(work, number), share[0].path.parent
    lines.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", *(str(file.path) for file in share), "-q", "-rN"]
    command += ["--import-mode=importlib", "--rootdir", str(folder), "-m", "not benchmark"]
    command += ["-p", "no:cacheprovider", "-p", "no:benchmark"]
    command += ["-p", "dih20.engine_check.pytest_lines"]
    with lines.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=work,
            env=_environment(share, take, lines),
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _environment(share: Sequence[TestFile], take: int, lines: Path) -> Mapping[str, str]:
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    if share[0].loops:  # these import modules beside them; the others' folder has names of ours
        paths += [str(share[0].path.parent), str(NOT_SHIPPED)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "DIH20_LINES": str(lines),
        "DIH20_TAKE": str(take),
        "DIH20_LOOPS": str(max(file.loops for file in share)),
        "DIH20_ONLY": json.dumps({file.name: file.only for file in share if file.only}),
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
        "DEEPINFER_ACCELERATOR": "nvidia",
    }
