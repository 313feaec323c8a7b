"""The dump format: what is written is read back, and what is broken is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from dih20.errors import DumpUnusable
from dih20.parity.dump import DumpReader, DumpWriter
from dih20.parity.tensor_file import TensorFile, TensorFileWriter
from tests.parity.runs import Runs, facts

pytestmark = pytest.mark.torch


def small_dump(folder: Path, **more: bool) -> DumpReader:
    with DumpWriter(folder, facts(), **more) as dump:
        dump.begin_step("prefill", [[5, 6]], [0, 1])
        dump.add("embed", torch.arange(12.0).view(1, 2, 6))
        dump.add("layers.2.attn.q", torch.arange(24.0).view(2, 3, 4).transpose(0, 2)[1:])
        dump.begin_step("decode", [[7]], [2])
        dump.add("embed", torch.ones(1, 1, 6, dtype=torch.bfloat16))
    return DumpReader(folder)


def test_what_was_written_is_read_back_with_shape_stride_and_offset(tmp_path: Path) -> None:
    dump = small_dump(tmp_path / "d")
    record = dump.record(0, "layers.2.attn.q")
    assert (record.shape, record.stride, record.storage_offset) == ((3, 3, 2), (1, 4, 12), 1)
    assert (record.layer, record.layer_kind, record.phase) == (2, "full-r2", "prefill")
    wanted = torch.arange(24.0).view(2, 3, 4).transpose(0, 2)[1:]
    assert torch.equal(dump.tensor(0, "layers.2.attn.q"), wanted)
    assert dump.tensor(1, "embed").dtype == torch.bfloat16
    assert dump.facts.tokens == (((5, 6),), ((7,),))
    assert dump.facts.positions == ((0, 1), (2,))


def test_files_are_what_the_safetensors_library_reads(tmp_path: Path) -> None:
    dump = small_dump(tmp_path / "d")
    with safe_open(tmp_path / "d" / "step-0000.rank-0.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("embed"), dump.tensor(0, "embed"))


def test_a_header_longer_than_the_room_kept_for_it_moves_the_data(tmp_path: Path) -> None:
    path = tmp_path / "many.safetensors"
    with TensorFileWriter(path) as file:
        for number in range(1500):
            file.add(f"a.rather.long.name.of.a.tensor.{number}", torch.full((3,), float(number)))
    opened = TensorFile(path)
    assert opened.read("a.rather.long.name.of.a.tensor.1499").tolist() == [1499.0] * 3
    with safe_open(path, framework="pt") as other:
        assert other.get_tensor("a.rather.long.name.of.a.tensor.7").tolist() == [7.0] * 3


def test_a_tensor_comes_in_pieces_of_the_size_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    with TensorFileWriter(path) as file:
        file.add("x", torch.arange(10, dtype=torch.int32))
    pieces = [piece.tolist() for piece in TensorFile(path).pieces("x", 4)]
    assert pieces == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_statistics_only_dump_has_sketches_and_no_tensors(tmp_path: Path) -> None:
    whole, sketched = small_dump(tmp_path / "w"), small_dump(tmp_path / "s", statistics_only=True)
    for key in whole.keys:
        assert whole.describe(*key)[0] == sketched.describe(*key)[0]
        assert torch.equal(whole.describe(*key)[1], sketched.describe(*key)[1])
    with pytest.raises(DumpUnusable, match="statistics only"):
        sketched.tensor(0, "embed")


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    small_dump(tmp_path / "d")
    path = tmp_path / "d" / "step-0001.rank-0.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DumpUnusable, match=r"step-0001.*not a whole safetensors file"):
        DumpReader(tmp_path / "d")


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, (10).to_bytes(8, "little") + b"[1,2,3]   "])
def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    small_dump(tmp_path / "d")
    (tmp_path / "d" / "step-0000.rank-0.safetensors").write_bytes(content)
    with pytest.raises(DumpUnusable, match="not a whole safetensors file"):
        DumpReader(tmp_path / "d")


def test_a_missing_step_file_is_named(tmp_path: Path) -> None:
    small_dump(tmp_path / "d")
    (tmp_path / "d" / "step-0001.rank-0.safetensors").unlink()
    with pytest.raises(DumpUnusable, match=r"step-0001.*does not exist"):
        DumpReader(tmp_path / "d")


def test_a_folder_without_index_and_no_folder_are_different_errors(tmp_path: Path) -> None:
    with pytest.raises(DumpUnusable, match="no index"):
        DumpReader(tmp_path)
    with pytest.raises(DumpUnusable, match="no such folder"):
        DumpReader(tmp_path / "nothing")


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1, "run": {}, "records": []}'])
def test_a_broken_index_is_refused(tmp_path: Path, text: str) -> None:
    small_dump(tmp_path / "d")
    (tmp_path / "d" / "index.rank-0.json").write_text(text)
    with pytest.raises(DumpUnusable, match="not a readable index"):
        DumpReader(tmp_path / "d")


def test_an_index_of_another_format_or_other_shapes_is_refused(tmp_path: Path) -> None:
    small_dump(tmp_path / "d")
    path = tmp_path / "d" / "index.rank-0.json"
    index = json.loads(path.read_text())
    index["records"][0]["shape"] = [1, 3, 4]
    path.write_text(json.dumps(index))
    with pytest.raises(DumpUnusable, match="embed is"):
        DumpReader(tmp_path / "d")
    index["format"] = 99
    path.write_text(json.dumps(index))
    with pytest.raises(DumpUnusable, match="dump format 99"):
        DumpReader(tmp_path / "d")


def test_a_dump_is_not_written_over_another(tmp_path: Path) -> None:
    small_dump(tmp_path / "d")
    with pytest.raises(DumpUnusable, match="already holds a dump"):
        DumpWriter(tmp_path / "d", facts())


def test_a_run_that_fails_leaves_no_half_file_and_no_index(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), DumpWriter(tmp_path / "d", facts()) as dump:
        dump.begin_step("prefill", [[5]], [0])
        dump.add("embed", torch.ones(1, 1, 6))
        _ = 1 / 0
    assert list((tmp_path / "d").iterdir()) == []


def test_one_site_twice_in_a_step_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(DumpUnusable, match="embed was produced twice"),
        DumpWriter(tmp_path / "d", facts()) as dump,
    ):
        dump.begin_step("prefill", [[5]], [0])
        dump.add("embed", torch.ones(1, 1, 6))
        dump.add("embed", torch.ones(1, 1, 6))


def test_a_dump_of_the_reference_holds_every_site_in_causal_order(runs: Runs) -> None:
    from dih20.parity.sites import causal_sites, inputs_of

    dump = DumpReader(runs.trusted)
    names = [site.name for site in causal_sites(dump.config)]
    assert [name for step, name in dump.keys if step == 0] == names
    recorded = [
        r["site"] for r in json.loads((runs.trusted / "index.rank-0.json").read_text())["records"]
    ]
    place = {name: recorded.index(name) for name in names}
    for name in names:
        for made_of in inputs_of(name, dump.config):
            assert place[made_of] < place[name], f"{name} is made of {made_of}, which comes later"
