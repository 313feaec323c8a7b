"""The names that the adapter uses, in the real engine's sources."""

from __future__ import annotations

import ast
import re
import shutil
from enum import Enum
from pathlib import Path

import pytest

from dih20.serve.engines import deepinfer_arguments, deepinfer_engram, deepinfer_symbols
from dih20.serve.engines.deepinfer_symbols import USED, complaints
from tests.serve.engines.upstream import defined, unpacked

FAKE = Path(__file__).parent / "fake_engine" / "deepinfer"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("released"))


@pytest.fixture
def copy(package: Path, tmp_path: Path) -> Path:
    for file in {used.file for used in USED}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / file, tmp_path / file)
    return tmp_path


def test_the_released_engine_has_every_name_the_adapter_uses(package: Path) -> None:
    assert complaints(package) == []


def test_the_engine_that_stands_in_for_it_in_tests_has_them_too() -> None:
    assert complaints(FAKE) == []


def test_every_name_that_is_moved_is_told(copy: Path) -> None:
    for used in USED:
        path = copy / used.file
        before = path.read_text(encoding="utf-8")
        path.write_text(re.sub(rf"\b{used.name}\b", f"{used.name}_moved", before), encoding="utf-8")
        assert any(line.startswith(used.shown) for line in complaints(copy)), used.shown
        path.write_text(before, encoding="utf-8")
    assert complaints(copy) == []


@pytest.mark.parametrize(
    ("file", "was", "now", "told"),
    [
        ("engine/llm_engine.py", "class LLMEngine:", "class Engine:", "no such class"),
        ("engine/llm_engine.py", "        user_id: str,", "        user: str,", "takes no user_id"),
        (
            "engine/llm_engine.py",
            "        user_id: str,\n",
            "        user_id: str,\n        tenant: str,\n",
            "needs tenant as well",
        ),
        ("sampling_params.py", "seq_seed: int | None = None", "seed: int = 0", "takes no seq_seed"),
    ],
)
def test_another_signature_is_told(copy: Path, file: str, was: str, now: str, told: str) -> None:
    text = (copy / file).read_text(encoding="utf-8")
    assert was in text
    (copy / file).write_text(text.replace(was, now, 1), encoding="utf-8")
    assert any(told in line for line in complaints(copy)), complaints(copy)


def test_a_missing_source_file_is_told_and_a_missing_stub_is_not(copy: Path) -> None:
    (copy / "_C" / "engine.pyi").unlink()
    assert complaints(copy) == []
    (copy / "sampling_params.py").unlink()
    assert complaints(copy) == ["sampling_params.py: SamplingParams.__init__: no such file"]


def test_every_variable_we_set_is_read_by_the_engine(package: Path) -> None:
    known = (package / "environ.py").read_text(encoding="utf-8")
    ours = {name for name in deepinfer_arguments._DEFAULTS if name.startswith("DEEPINFER_")}
    assert ours
    assert [name for name in sorted(ours) if not re.search(rf"^    {name} = ", known, re.M)] == []


@pytest.mark.parametrize(
    ("given", "group"),
    [(0, 8), (deepinfer_engram.SERVED_GROUP, 1)],
    ids=["upstream's own", "ours"],
)
def test_a_copy_of_engrams_tables_for_each_of_eight_ranks_is_taken(
    package: Path, given: int, group: int
) -> None:
    tree = ast.parse((package / "config.py").read_text(encoding="utf-8"))
    (config,) = (
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "ParallelConfig"
    )
    made = defined([[config]], {"EngineType": Enum("EngineType", "NORMAL")})["ParallelConfig"](
        data_parallel_size=0,
        context_parallel_size=1,
        expert_parallel_size=8,
        engram_parallel_size=given,
        engine_rank=7,
        engine_group_rank=0,
    )
    assert (made.engram_parallel_size, made.data_parallel_size, made.world_size) == (group, 8, 8)


def test_the_place_of_engrams_tables_is_read_as_upstream_reads_it(package: Path) -> None:
    """Its own function over every spelling; not set, upstream says host memory."""
    text = (package / "environ.py").read_text(encoding="utf-8")
    assert f"    {deepinfer_engram.ON_GPU} = EnvVar(lambda v: _bool(v) or" in text
    own = re.search(r"^def _bool\(.*?\n\n", text, re.M | re.S)
    assert own, "the whole file is for Python 3.12"
    upstream = defined([ast.parse(own[0]).body], {})["_bool"]
    for value in ("1", "0", "", "false", "False", "true", "no"):
        ours = deepinfer_engram.tables_on_gpu({deepinfer_engram.ON_GPU: value}, 8)
        assert ours == upstream(value), value
    assert deepinfer_engram.tables_on_gpu({}, 8) == upstream(None)
    assert deepinfer_engram.tables_on_gpu({}, 1)


def test_the_version_is_that_of_the_lock(package: Path) -> None:
    text = (package / "__init__.py").read_text(encoding="utf-8")
    assert f'__version__ = "{deepinfer_symbols.VERSION}"' in text


def test_upstreams_own_loop_is_the_one_the_adapter_copies(package: Path) -> None:
    """step() while unfinished, then one flush, and no pictures: as in its entry point for batches."""
    text = (package / "entrypoints" / "llm.py").read_text(encoding="utf-8")
    assert "self.llm_engine.step() if unfinished else self.llm_engine.flush_inflight_reqs()" in text
    assert "multi_modal_data = dict(image_bytes=[], image_sizes=[])" in text
