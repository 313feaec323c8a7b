"""The re-encoding kernels as the compiler sees them, and their arithmetic on the host, code by code."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from h20_ops.cuda.requant_kernel import Params, source
from h20_ops.jit import compile_cuda, find_nvcc, ptxas_reports
from h20_ops.requant_loss import COUNTERS
from h20_ops.requant_tables import Table, fp4_table, fp8_table
from h20_ops.testing.compare import check_bitwise
from h20_ops.testing.seeds import generator_for

pytestmark = [pytest.mark.nvcc, pytest.mark.torch]

CPU = torch.device("cpu")
PLACES = [*range(24), 28, 29, 60, 120, 149, 150, 187, 254]


def test_the_kernels_compile_for_sm90_without_spills() -> None:
    reports = {report.entry: report for report in ptxas_reports(compile_cuda(source()))}
    assert set(reports) == {"requant_fp4", "requant_fp8", "requant_fp8_bytes"}
    for report in reports.values():
        assert report.arch == "sm_90a"
        assert (report.spill_store_bytes, report.spill_load_bytes) == (0, 0)
        assert report.registers <= 64, "four thread blocks of 256 share a multiprocessor"


def test_the_structures_are_those_of_the_source() -> None:
    assert ctypes.sizeof(Params) == 5 * 8 + 8
    assert COUNTERS.size == 32 and COUNTERS.unpack(bytes(32)) == (0, 0.0, 0, 0)


def compile_for_host(folder: Path, kernels: Path) -> ctypes.CDLL:
    """Compile the header in `kernels` with the host compiler; nvcc knows where its headers are."""
    nvcc = find_nvcc()
    assert nvcc is not None, "the mark nvcc promises one"
    library = folder / "requant.so"
    host = Path(__file__).with_name("host_requant_codes.cpp")
    command = [str(nvcc), "-x", "c++", "-O1", "-std=c++17", "-shared", "-cudart", "none"]
    command += ["-Xcompiler", "-fPIC,-w", f"-I{kernels}", "-o", str(library), str(host)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module")
def on_host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels' own header, as host code."""
    return compile_for_host(tmp_path_factory.mktemp("host"), source().path.parent)


def run(
    library: ctypes.CDLL, kind: str, codes: torch.Tensor, places: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bytes, counts and errors of words of codes (words, 4), uint8."""
    words = codes.shape[0]
    wide = 2 if kind == "fp4" else 1
    made = torch.full((words, 4 * wide), 0x55, dtype=torch.uint8)
    counts = torch.full((words,), -1, dtype=torch.int32)
    errors = torch.full((words,), torch.nan)
    addresses = [ctypes.c_void_p(t.data_ptr()) for t in (made, counts, errors)]
    call = getattr(library, f"run_{kind}")
    call(ctypes.c_void_p(codes.data_ptr()), places, ctypes.c_long(words), *addresses)
    return made, counts, errors


def every_byte_and_random_words(kind: str) -> torch.Tensor:
    same = torch.arange(256, dtype=torch.int64).to(torch.uint8).unsqueeze(1).expand(256, 4)
    mixed = torch.randint(0, 256, (500, 4), generator=generator_for(kind)).to(torch.uint8)
    return torch.cat([same, mixed]).contiguous()


def check_against(table: Table, library: ctypes.CDLL, kind: str, places: int) -> None:
    codes = every_byte_and_random_words(kind)
    made, counts, errors = run(library, kind, codes, places)
    entries = codes.long()
    wanted = table.codes[places][entries].contiguous().view(torch.uint8).view(made.shape)
    check_bitwise(f"{kind} codes {places} places down", made, wanted)
    inexact = table.num_inexact[places][entries].sum(1).int()
    check_bitwise(f"{kind} counts {places} places down", counts, inexact)
    check_bitwise(f"{kind} errors", errors, table.error[places][entries].amax(1))


@pytest.mark.parametrize("places", PLACES)
def test_the_kernels_codes_counts_and_errors_are_the_tables(
    on_host: ctypes.CDLL, places: int
) -> None:
    check_against(fp4_table(CPU), on_host, "fp4", places)
    check_against(fp8_table(CPU), on_host, "fp8", places)


def test_one_code_of_a_table_wrong_is_caught(tmp_path: Path) -> None:
    text = (source().path.parent / "requant_codes.cuh").read_text()
    wrong = text.replace("code == 6 ? 8 : 12", "code == 6 ? 8 : 14")
    assert wrong != text
    (tmp_path / "requant_codes.cuh").write_text(wrong)
    library = compile_for_host(tmp_path, tmp_path)
    with pytest.raises(AssertionError, match=r"fp4 codes 3 places down: first difference"):
        check_against(fp4_table(CPU), library, "fp4", 3)
