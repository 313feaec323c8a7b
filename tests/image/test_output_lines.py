"""A failed step shows the lines that say why, not the last lines of whatever was printed."""

from __future__ import annotations

import pytest

from dih20.image.output_lines import advice, error_lines, lines_of

COMPILER = "src/kernel.cu:17:10: fatal error: cusparse.h: No such file or directory"


def test_a_compiler_error_is_found_among_thousands_of_lines() -> None:
    lines = [f"progress {i}" for i in range(3000)]
    lines.insert(1500, COMPILER)
    assert error_lines(lines) == [COMPILER]


@pytest.mark.parametrize(
    "line",
    [
        COMPILER,
        'kernel.cu(12): error: identifier "foo" is undefined',
        "nvcc fatal   : Unsupported gpu architecture 'compute_103a'",
        "/usr/bin/ld: x.o: undefined reference to `cuInit'",
        "/usr/bin/ld: cannot find -lnccl: No such file or directory",
        "E: Unable to locate package foo",
        "dpkg: error processing archive /mnt/debs/git.deb (--install):",
        " git depends on libcurl3t64-gnutls (>= 7.56.1); however:",
        "ERROR: No matching distribution found for einops==0.8",
        "    ERROR: file was damaged"[4:],
        "error: pip changed torch from 2.13 to 2.12",
        "ImportError: libcudart.so.12: cannot open shared object file",
        "/mnt/step.sh: 3: nosuchprogram: not found",
        "make: *** [Makefile:3: all] Error 2",
    ],
)
def test_what_tools_start_an_error_with_is_known(line: str) -> None:
    assert error_lines(["before", line, "after"]) == [line]


def test_without_a_known_error_the_last_lines_are_shown() -> None:
    assert error_lines([str(i) for i in range(100)], most=3) == ["97", "98", "99"]


def test_more_errors_than_are_shown_are_counted() -> None:
    shown = error_lines([f"E: package {i}" for i in range(30)], most=5)
    assert shown[:5] == [f"E: package {i}" for i in range(5)]
    assert shown[5] == "... and 25 more"


def test_a_key_that_is_missing_is_named_with_its_list() -> None:
    line = "W: GPG error: http://mirror/cuda ./ InRelease: The following signatures: NO_PUBKEY A4B469963BF863CC"
    text = advice([line])
    assert text is not None
    assert "http://mirror/cuda ./" in text
    assert "A4B469963BF863CC" in text


def test_a_missing_wheel_is_named() -> None:
    text = advice(
        ["Looking in links: /mnt/x", "ERROR: No matching distribution found for einops==0.8"]
    )
    assert text is not None
    assert "einops==0.8" in text


def test_ordinary_output_gives_no_advice() -> None:
    assert advice(["all fine"]) is None


def test_lines_are_cut_across_chunks_and_characters() -> None:
    raw = "a zürich\nb\r\nc".encode()
    for size in range(1, len(raw) + 1):
        chunks = [raw[i : i + size] for i in range(0, len(raw), size)]
        assert list(lines_of(chunks)) == ["a zürich", "b", "c"]


def test_an_invalid_byte_is_shown_as_its_escape() -> None:
    assert list(lines_of([b"bad \xff byte\n"])) == ["bad \\xff byte"]
