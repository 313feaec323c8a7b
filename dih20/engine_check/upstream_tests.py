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
from dih20.engine_check.options import Options
from dih20.engine_check.pytest_lines import KNOWN
from dih20.engine_check.sources import engine_folder
from dih20.engine_check.stages import stage
from dih20.paths import REPOSITORY

MOST_WORKERS = 3  # they share one card
FILE_S = 240
KNOWN_RELATIVE = 2.0**-7  # one step of bf16: what the known cases may differ by
_TILELANG = (
    "store_kv_cache", "load_paged_kv_cache", "fused_transform", "norm", "compress", "gather",
    "candidate_blocks", "swa_index", "get_kv_index", "kv_index_cat", "flash_mla_utils", "fused_sample",
    "state_cache",
)  # fmt: skip
# What the port calls on SM90: the rest of these files is for other GPUs, or for training.
_DEEP_GEMM = {
    "test_fp8_fp4.py": "test_gemm or test_m_grouped_gemm_contiguous",
    "test_bf16.py": "test_gemm",
    "test_einsum.py": "test_fp8_bhr_hdr_bhd or test_bhr_hdr_bhd",
    "test_hyperconnection.py": "test_hc_prenorm_gemm",
    "test_layout.py": "test_sf_layout_kernels",
    "test_attention.py": "test_mqa_logits",
}


@dataclass(frozen=True, kw_only=True)
class TestFile:
    __test__ = False  # its name looks like a test case to pytest

    name: str
    path: Path
    subset: str = ""  # of pytest's -k
    folder: Path | None = None  # to run in


def run_upstream_tests(
    options: Options, work: Path, here: dict[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    """Run every file, write the stage's record, and give it."""
    begun = time.monotonic()
    files = [file for file in _files(options) if options.only in file.name]
    limit = FILE_S * options.limits
    rows = run_files(
        files,
        options.take,
        options.workers,
        limit,
        work,
        whole_s=stage("a").limit_s * options.limits,
    )
    reasons = judged(rows)
    if not files:
        reasons.append(
            "no test file of upstream was found: give --upstream and put deepinfer on the path"
        )
    record = results.record(
        "a",
        results.FAILED if reasons else results.PASSED,
        here=here,
        numbers={"one_in": options.take, "limit_s": limit, "files": rows},
        reason="; ".join(reasons),
        seconds=time.monotonic() - begun,
    )
    results.write_json(results.record_path(work, "a"), record)
    for name, row in rows.items():
        counts = ", ".join(f"{row[key]} {key}" for key in ("passed", "failed", "known", "skipped"))
        say(f"  {name}: {counts}{' (cut at its limit)' if row['cut'] else ''}, {row['seconds']} s")
    say(f"a {record['verdict']}  {stage('a').title}  {record['reason'][:300]}")
    return record


def _files(options: Options) -> Iterator[TestFile]:
    tree = options.tree_folder or engine_folder()
    if tree is not None:
        for name in _TILELANG:
            path = tree / f"deepinfer/model_executor/layers/tilelang_ops/{name}.py"
            if path.is_file():
                yield TestFile(name=f"{name}.py", path=path, subset="not benchmark")
    folder = Path(options.upstream) if options.upstream else None
    for name, subset in _DEEP_GEMM.items():
        found = sorted(folder.rglob(name)) if folder is not None and folder.is_dir() else []
        if found:
            yield TestFile(name=name, path=found[0], subset=subset, folder=found[0].parent)


def run_files(
    files: Sequence[TestFile],
    take: int,
    workers: int,
    limit_s: float,
    work: Path,
    *,
    whole_s: float,
) -> dict[str, dict[str, Any]]:
    """Run files, a few at once, each under a limit and all under another; give counts for each."""
    waiting, running = list(files), list[tuple[TestFile, Any, float]]()
    rows: dict[str, dict[str, Any]] = {}
    begun = time.monotonic()
    try:
        while waiting or running:
            over = time.monotonic() - begun > whole_s
            while waiting and len(running) < min(workers, MOST_WORKERS) and not over:
                file = waiting.pop(0)
                running.append((file, _start(file, take, work), time.monotonic()))
            for each in list(running):
                file, process, since = each
                seconds = time.monotonic() - since
                late = seconds > limit_s or over
                if process.poll() is None and not late:
                    continue
                cut = process.poll() is None
                process.kill()
                code = process.wait()
                running.remove(each)
                rows[file.name] = counted(_lines_path(work, file), file, code, cut, seconds)
            if over and waiting:
                for file in waiting:
                    rows[file.name] = counted(_lines_path(work, file), file, 0, True, 0.0)
                waiting = []
            time.sleep(0.1)
    finally:
        for _, process, _since in running:
            process.kill()
    return {file.name: rows[file.name] for file in files}


def _lines_path(work: Path, file: TestFile) -> Path:
    return work / "upstream" / f"{file.name}.jsonl"


def _start(file: TestFile, take: int, work: Path) -> subprocess.Popen[bytes]:
    lines = _lines_path(work, file)
    lines.parent.mkdir(parents=True, exist_ok=True)
    lines.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(file.path),
        "--import-mode=importlib",
        "-q",
        "-rN",
    ]
    command += ["-p", "no:cacheprovider", "-p", "no:benchmark", "-m", "not benchmark"]
    command += ["-p", "dih20.engine_check.pytest_lines", "--rootdir", str(file.path.parent)]
    if file.subset:
        command += ["-k", file.subset]
    with lines.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=file.folder or work,
            env=_environment(file, take, lines),
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _environment(file: TestFile, take: int, lines: Path) -> Mapping[str, str]:
    paths = [str(REPOSITORY), *([str(file.folder)] if file.folder else [])]
    paths += [path for path in [os.environ.get("PYTHONPATH", "")] if path]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "DIH20_LINES": str(lines),
        "DIH20_TAKE": str(take if file.folder is None else 1),
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
        "DEEPINFER_ACCELERATOR": "nvidia",
    }


def counted(path: Path, file: TestFile, code: int, cut: bool, seconds: float) -> dict[str, Any]:
    """Give a file's counts from the lines that its tests wrote."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    row: dict[str, Any] = {
        "passed": 0, "failed": 0, "skipped": 0, "known": 0, "cut": cut, "exit_code": code,
        "seconds": round(seconds, 1), "subset": file.subset, "failures": [], "known_cases": [],
    }  # fmt: skip
    for line in lines:
        if "collected" in line:
            row |= {"collected": line["collected"], "left_out": line["left_out"]}
            continue
        outcome = line["outcome"]
        if outcome == "failed" and _is_known(line):
            row["known"] += 1
            row["known_cases"].append({"test": line["test"], "difference": line["difference"]})
            continue
        row[outcome] += 1
        if outcome == "failed" and len(row["failures"]) < 12:
            row["failures"].append(
                {key: line[key] for key in ("test", "why", "difference") if key in line}
            )
    return row


def _is_known(line: Mapping[str, Any]) -> bool:
    """Whether it is one of the cases that are known, and no further apart than one step."""
    gap = line.get("difference", {}).get("largest_relative")
    return bool(KNOWN.search(str(line["test"]))) and gap is not None and gap <= KNOWN_RELATIVE


def judged(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say what is wrong: a failure that is not known, a file without a passed test, one that was cut."""
    reasons = []
    for name, row in rows.items():
        if row["failed"]:
            first = row["failures"][0]
            reasons.append(
                f"{name}: {row['failed']} failed, the first {first['test']}: {first.get('why', '')}"
            )
        elif row["cut"]:
            reasons.append(f"{name}: cut at its limit after {row['passed']} passed")
        elif row["exit_code"] not in (0, 1) or not row["passed"]:
            reasons.append(f"{name}: pytest ended with {row['exit_code']}, {row['passed']} passed")
    return reasons
