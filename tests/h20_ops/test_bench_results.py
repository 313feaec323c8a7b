"""Benchmark results: rows, bounds, files and the tables made from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from h20_ops.errors import EvidenceError
from h20_ops.testing import bench_table
from h20_ops.testing.bench import OPERATOR_OF, SHAPE_KEYS, BenchRun, benchmarks, write_results
from h20_ops.testing.bench_table import BEGIN, END, replace_tables, table_of, tables_of
from h20_ops.testing.evidence import OPERATOR_SOURCES
from h20_ops.testing.peers import Peer, recorded, recorded_decode, recorded_prefill
from h20_ops.testing.roofline import H20, H200, Work, lower_bound_us, mla_work, terms_us
from h20_ops.testing.timing import Timing

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "bench" / "results").glob("h2*/*.json"))
FACTS = {
    "clocks": {"sm_mhz": 1755.0, "memory_mhz": 3201.0, "sm_max_mhz": 1980.0},
    "commit": "0123456789abcdef",
    "date": "2026-11-29T16:00:00Z",
    "torch": "2.11.0",
    "cuda": "13.0",
}


def timing(us: float) -> Timing:
    return Timing(median_us=us, min_us=us, p90_us=us, calls=4, replays=10)


def measured() -> BenchRun:
    run = BenchRun(op="mla_prefill", card="NVIDIA H200", copy_gbps=4200.0)
    shape = {"s_q": 4096, "s_kv": 8192, "topk": 640, "heads": 64}
    work = mla_work(rows=4096, heads=64, topk=640, bytes_moved=5e8)
    run.row(shape=shape, ours=timing(640.0), work=work, indices="random")
    peers = [Peer(name="other", us=700.0, source="same_run")]
    run.row(shape=shape, ours=timing(640.0), work=work, peers=peers, indices="neighbour")
    return run


def test_rates_and_bounds_of_a_row_follow_from_the_shape() -> None:
    row, with_peer = measured().rows
    flops = 4 * 512 * 4096 * 64 * 640
    assert row["tflops"] == pytest.approx(flops / 640e-6 / 1e12, abs=0.1)
    assert row["gbps"] == pytest.approx(5e8 / 640e-6 / 1e9, abs=0.1)
    assert row["roofline_us"] == pytest.approx(flops / 989e12 * 1e6, rel=1e-3)
    assert row["h20_lower_bound_us"] == pytest.approx(flops / 148e12 * 1e6, rel=1e-3)
    assert row["peer"] is None and row["peer_us"] is None
    assert (with_peer["peer"], with_peer["peer_source"]) == ("other", "same_run")


def test_the_bound_is_the_largest_term_of_its_card() -> None:
    memory = mla_work(rows=1, heads=64, topk=640, bytes_moved=4e9)
    assert lower_bound_us(memory, H20) == pytest.approx(1000.0)
    assert lower_bound_us(memory, H200) == pytest.approx(4e9 / 4.8e6)
    dequant = mla_work(
        rows=1, heads=1, topk=1, bytes_moved=0, dequantised_values=1e9, alu_ops_per_value=2
    )
    ratio = terms_us(dequant, H20)["dequant"] / terms_us(dequant, H200)["dequant"]
    assert ratio == pytest.approx(132 / 78)
    assert lower_bound_us(dequant, H20) == terms_us(dequant, H20)["dequant"]


def test_recorded_peers_are_the_measured_rates() -> None:
    named = {p.name: p for p in recorded_prefill(s_q=4096, topk=640, heads=64)}
    flops = 4 * 512 * 4096 * 64 * 640
    assert flops / named["FlashMLA SM90"].us / 1e6 == pytest.approx(518)
    assert {p.source for p in named.values()} == {"recorded"}
    assert recorded_prefill(s_q=4096, topk=640, heads=128) == []
    (only,) = recorded_decode(batch=8, topk=128, extra_topk=512, heads=64)
    assert only.us == 20.1
    (paged,) = recorded("logits_paged", 64, 131_072, 32)
    assert (paged.us, paged.source) == (316.4, "recorded")
    assert recorded("topk", 1, 2, 3) == []


def test_products_in_fp8_are_bounded_by_their_own_rate() -> None:
    bf16, fp8 = (Work(flops=1e12, bytes_moved=1, mma_speed=speed) for speed in (1.0, 2.0))
    assert lower_bound_us(fp8, H20) == pytest.approx(lower_bound_us(bf16, H20) / 2)
    run = BenchRun(op="logits_paged", card="NVIDIA H200", copy_gbps=4200.0)
    run.row(shape={"batch": 1, "context": 2, "heads": 32}, ours=timing(9.0), work=fp8)
    assert run.rows[0]["roofline_us"] == pytest.approx(1e12 / 1978e12 * 1e6, rel=1e-3)


def test_every_benchmark_has_shape_keys_and_an_operator() -> None:
    assert set(SHAPE_KEYS) == set(OPERATOR_OF)
    assert set(OPERATOR_OF.values()) <= set(OPERATOR_SOURCES)
    assert {path.stem for path in RESULTS} <= set(benchmarks(ROOT))


def test_a_shape_without_all_its_keys_is_a_mistake() -> None:
    run = BenchRun(op="mla_decode", card="NVIDIA H200", copy_gbps=4200.0)
    work = mla_work(rows=1, heads=64, topk=640, bytes_moved=1)
    with pytest.raises(AssertionError, match="mla_decode: shape needs"):
        run.row(shape={"batch": 1}, ours=timing(1.0), work=work)


def test_a_run_without_rows_is_not_written(tmp_path: Path) -> None:
    run = BenchRun(op="mla_decode", card="NVIDIA H200", copy_gbps=4200.0)
    with pytest.raises(AssertionError, match="measured nothing"):
        write_results(tmp_path / "x.json", run, FACTS)
    assert not (tmp_path / "x.json").exists()


def test_a_file_becomes_a_table_with_its_facts(tmp_path: Path) -> None:
    write_results(tmp_path / "mla_prefill.json", measured(), FACTS)
    lines = tables_of(tmp_path).splitlines()
    assert lines[0].startswith("**mla_prefill** on NVIDIA H200: SM clock 1755 MHz under load")
    assert lines[2].startswith("| s_q | s_kv | topk | heads | indices | ours, us | TFLOP/s |")
    assert lines[4].startswith("| 4096 | 8192 | 640 | 64 | random | 640 | 537 |")
    assert lines[4].endswith("| – |")
    assert lines[5].endswith("| other 700 (same run) |")
    assert len({line.count("|") for line in lines[2:6]}) == 1


def test_the_peers_of_one_measurement_share_a_line() -> None:
    run = BenchRun(op="mla_decode", card="NVIDIA H200", copy_gbps=4200.0)
    shape = {"batch": 8, "topk": 128, "extra_topk": 512, "heads": 64}
    work = mla_work(rows=8, heads=64, topk=640, bytes_moved=2e6)
    peers = [Peer(name="a", us=20.1, source="recorded"), Peer(name="b", us=9.25, source="same_run")]
    run.row(shape=shape, ours=timing(7.5), work=work, peers=peers)
    run.row(shape={**shape, "batch": 16}, ours=timing(7.5), work=work)
    lines = table_of({"op": run.op, "card": run.card, **FACTS, "copy_gbps": 1.0, "rows": run.rows})
    body = lines.splitlines()[4:]
    assert [line.split(" | ")[0] for line in body] == ["| 8", "| 16"]
    assert body[0].endswith("| a 20.1 (recorded); b 9.25 (same run) |")


def test_only_the_marked_part_of_a_file_is_replaced(tmp_path: Path) -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    replaced = replace_tables(text, "new")
    assert replaced == f"before\n{BEGIN}\n\nnew\n{END}\nafter\n"
    assert replace_tables(replaced, "new") == replaced
    with pytest.raises(EvidenceError, match="no single pair of table markers"):
        replace_tables("no markers", "new")
    target = tmp_path / "notes.md"
    target.write_text("no markers")
    assert bench_table.main([str(tmp_path), "--into", str(target)]) == 2
    assert target.read_text() == "no markers"


def test_committed_results_have_every_key_and_plausible_numbers() -> None:
    for path in RESULTS:
        record = json.loads(path.read_text())
        for key in ("op", "card", "clocks", "copy_gbps", "commit", "date", "torch"):
            assert record[key], f"{path.name}: {key}"
        for row in record["rows"]:
            assert set(SHAPE_KEYS[record["op"]]) <= set(row), row
            assert row["ours_us"] >= 0.95 * row["roofline_us"], f"faster than possible: {row}"
            assert (row["peer"] is None) == (row["peer_us"] is None)
            assert row["peer_source"] in (None, "same_run", "recorded")
            assert row["h20_lower_bound_us"] == max(row["h20_lower_bound_terms_us"].values())


def test_the_readme_shows_the_committed_results() -> None:
    readme = (ROOT / "h20_ops" / "README.md").read_text()
    for path in RESULTS:
        assert table_of(json.loads(path.read_text())) in readme, (
            f"run python3 -m h20_ops.testing.bench_table {path.parent.relative_to(ROOT)} "
            "--into h20_ops/README.md"
        )
