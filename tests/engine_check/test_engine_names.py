"""What stages d, e and g take hold of in the engine, by name, in the released sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from dih20.serve.engines.deepinfer_symbols import Used, complaints
from tests.serve.engines.upstream import unpacked

pytestmark = pytest.mark.torch

_GRAPHS, _METADATA = (
    "worker/cuda_graph_runner.py",
    "model_executor/input_metadata/input_metadata.py",
)
_INDEX = "model_executor/models/v4_modules/index_attn.py"
_ATTENTION = "model_executor/models/v4_modules/attn.py"
_COMPRESS = "model_executor/models/v4_modules/compress.py"
_COMPRESSED = (
    "projected_kv", "kv_cache", "state_cache", "input_metadata", "return_pre_rope_kv",
)  # fmt: skip
_REACH = (
    "positions", "kv_swa_full_index", "ks", "ke", "klen", "context_lens",
    "slot_mapping_store_swa", "slot_mapping_store_ca", "kv_swa_index", "block_tables",
)  # fmt: skip
_PREFILL = (
    "q_b", "kv", "kv_ca_index", "kv_swa_full_index", "total_k_swa_cached", "total_k_swa_cur",
    "input_metadata",
)  # fmt: skip
_DECODE = ("q_b", "kv_ca_index", "kv_swa_index", "kv_cache", "input_metadata")
_STORE = ("index_k_input", "index_k_cache", "state_cache", "input_metadata")
NAMES = (
    Used(_GRAPHS, "CudaGraphRunner", "replay", ("cuda_graph_data",)),
    Used("worker/model_runner.py", "ModelRunner", "cuda_graph_runner"),
    Used("worker/model_runner.py", "ModelRunner", "use_cuda_graph"),
    Used(_INDEX, "MQA", "store_index_kv", _STORE),
    Used(_COMPRESS, "Compressor", "forward_store_kv_cache", _COMPRESSED),
    Used(_ATTENTION, "V4Attention", "_prefill_attention", _PREFILL),
    Used(_ATTENTION, "V4Attention", "_decode_attention", _DECODE),
    *(Used(_METADATA, "InputMetadataV4", name) for name in _REACH if name != "positions"),
    Used(_METADATA, "InputMetadata", "positions"),
)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("released"))


def test_the_released_engine_has_every_name(package: Path) -> None:
    assert complaints(package, NAMES) == []


def test_graphs_are_replayed_through_the_runner_and_only_while_there_are_some(
    package: Path,
) -> None:
    """The reason for counting replays: nothing else tells that a step ran eager."""
    text = (package / "worker/model_runner.py").read_text(encoding="utf-8")
    assert "self.use_cuda_graph and bool(self.cuda_graph_runner.graphs)" in text
    assert "model_output = self.cuda_graph_runner.replay(cuda_graph_used)" in text


def test_overlapped_scheduling_is_a_variable_that_the_engine_may_set_itself(package: Path) -> None:
    known = (package / "environ.py").read_text(encoding="utf-8")
    assert "    DEEPINFER_ZERO_OVERHEAD_SCHEDULING = EnvVar.bool()" in known
    assert "envs.DEEPINFER_ZERO_OVERHEAD_SCHEDULING" in (
        package / "engine/llm_engine.py"
    ).read_text(encoding="utf-8")
