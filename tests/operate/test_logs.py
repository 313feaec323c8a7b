"""Known fatal lines are explained; a rank's lines can be seen alone."""

from __future__ import annotations

import pytest

from dih20.console import Console
from dih20.operate.fatal_lines import explained, known, table
from dih20.operate.logs import of_rank, show_lines


@pytest.mark.parametrize(
    ("line", "means"),
    [
        ("[rank 3] RuntimeError: CUDA error 802: system not yet initialized", "NVSwitch fabric"),
        ("CUDA driver version is insufficient for CUDA runtime version", "driver is too old"),
        ("ImportError: libcuda.so.1: cannot open shared object file", "sees no GPU"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "too little free memory"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "a kernel failed"),
        ("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus", "hardware fault"),
        ('context.cpp:125: "NCCL GIN is unavailable. This is usually due', "a network card that GPUs drive"),
        ("torch.distributed.DistBackendError: NCCL error in: ncclSystemError", "between the ranks"),
        ("/bin/sh: 1: nvcc: not found", "run-time compiler"),
        ("sh: 1: c++: not found", "no C++ compiler"),
        ("OSError: [Errno 30] Read-only file system: '/data/jit-cache/x'", "compiled kernels cannot be kept"),
        ("OSError: [Errno 28] No space left on device", "a disk is full"),
        ("Fatal Python error: Bus error", "/dev/shm is too small"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "run out of memory"),
        ("safetensors_rust.SafetensorError: Error while deserializing header", "not whole"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/m/config.json'", "not where"),
        ("error: 127.0.0.1:8000 cannot be listened on: Address already in use", "port is taken"),
        ("[rank 0] ModuleNotFoundError: No module named 'torch'", "lacks a package"),
        ("[serve] rank 1 (process 4711) has ended; rank 0 cannot go on without it", "a rank of the engine was lost"),
    ],
)  # fmt: skip
def test_a_line_that_ends_a_server_says_what_it_means_and_what_to_do(line: str, means: str) -> None:
    entry = known(line)
    assert entry is not None
    assert means in entry.means
    assert entry.do


@pytest.mark.parametrize(
    "line",
    [
        "[serve] ready after 12.1 s",
        "[rank 0] loading shard 3 of 9: model-00003-of-00009.safetensors",
        "[launch] waiting for ./inv serve",
        "[rank 0] INFO NCCL version 2.32.3",
        "[rank 0] nvcc: NVIDIA (R) Cuda compiler driver",
        "",
    ],
)
def test_a_healthy_line_is_not_explained(line: str) -> None:
    assert known(line) is None


def test_no_entry_of_the_table_is_hidden_by_an_earlier_one_in_name_or_meaning() -> None:
    assert len({entry.means for entry in table()}) == len(table())


def test_each_fatal_line_is_explained_once_below_its_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = ["[rank 0] x", "No space left on device", "[rank 1] y", "No space left on device"]
    told = show_lines(Console(), lines, rank=None)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0:2] == ["[rank 0] x", "No space left on device"]
    assert "known: a disk is full" in shown[2]
    assert sum("known:" in line for line in shown) == 1
    assert told["lines"] == 4
    assert len(explained(lines)) == 1


def test_only_the_lines_of_one_rank_are_shown() -> None:
    assert of_rank("[rank 1] y", 1)
    assert not of_rank("[rank 11] y", 1)
    assert not of_rank("[serve] y", 1)
    assert of_rank("[serve] y", None)
