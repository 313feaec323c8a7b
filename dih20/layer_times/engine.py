"""One engine with the six layers, its weights filled in place, and its batches without a scheduler."""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dih20.layer_times import caches
from dih20.layer_times.filling import fill

_BLOCK = 128
_PORT_OFFSET = 50  # upstream's rendezvous listens on MASTER_PORT - 50
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "0",
    "DEEPINFER_ACCELERATOR": "nvidia",
    "DEEPINFER_USE_NEXTN_DECODE": "0",
    "DEEPINFER_ENFORCE_EAGER": "1",
    "DEEPINFER_DFLASH_ENFORCE_EAGER": "1",
    "DEEPINFER_ZERO_OVERHEAD_SCHEDULING": "0",
    "DEEPINFER_USE_MULTIMODAL_POOL": "0",
    "DEEPINFER_ENGRAM_FORCE_GPU_STORAGE": "1",
    "DEEPINFER_DISABLE_SYNC_GUARD": "1",
    "MASTER_ADDR": "127.0.0.1",
    "TOKENIZERS_PARALLELISM": "false",
}


class LayerEngine:
    """The engine; made once per process.

    Args:
        sequences, context: of the decode batch; sets how many cache blocks there are.
        longest: tokens of the prefill.
    """

    def __init__(self, folder: Path, *, sequences: int, context: int, longest: int) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("MASTER_PORT", str(_free_port() + _PORT_OFFSET))
        self._blocks = 2 + (sequences + 1) * (-(-(context + 1) // _BLOCK))
        _replace_loading()
        _replace_profile(self._blocks)
        load = importlib.import_module
        arguments = load("deepinfer.engine.arg_utils").EngineArgs(
            model=str(folder),
            max_model_len=context + 2 * _BLOCK,
            max_num_batched_tokens=max(longest, sequences),
            max_num_seqs=sequences,
            chunked_prefill=True,
            gpu_memory_utilization=0.9,
            disable_log_stats=True,
            stop_preempted_request=False,
            offline_inference=True,
        )
        self.engine = load("deepinfer.engine.llm_engine").LLMEngine.from_engine_args(arguments)
        self._runner = self.engine.driver_worker.model_runner
        self._cache = self.engine.driver_worker.gpu_cache
        self.model = self._runner.model

    def fill_caches(self) -> None:
        """Random numbers in every layer's pages: index scores of zeros would all be equal."""
        done: set[int] = set()
        for index in range(len(self.model.model.layers)):
            pages = self._cache[index]
            for name in ("swa_cache", "ca_cache", "ica_cache"):
                cache = getattr(pages, name)
                if cache is not None and cache.data_ptr() not in done:
                    done.add(cache.data_ptr())
                    caches.fill_cache(cache)

    def decode(self, sequences: int, context: int) -> Any:
        """One step of that many sequences, each with `context` tokens before and at it."""
        return self._forward(
            [self._sequence(i, False, 1, context, sequences) for i in range(sequences)]
        )

    def prefill(self, tokens: int) -> Any:
        """One fresh prompt."""
        return self._forward([self._sequence(0, True, tokens, tokens, 1)])

    def close(self) -> None:
        """End the forked worker for pictures; the process ends without the engine's barriers."""
        for worker in self.engine.multi_modal_processor.workers:
            worker.terminate()

    def _forward(self, batch: list[Any]) -> Any:
        return self._runner.execute_main_model(batch, self._cache)

    def _sequence(self, index: int, is_prompt: bool, rows: int, context: int, stride: int) -> Any:
        """Blocks of a sequence lie `stride` apart, as after a while of serving."""
        import numpy

        load = importlib.import_module
        sequence = load("deepinfer.sequence")
        tokenizer = load("deepinfer.model_executor.models.v4_modules.engram").CompressedTokenizer
        pad = load("deepinfer.model_executor.layers.mtp_info_pool").get_nextn_pad_token_ids
        count = -(-context // _BLOCK)
        drawn = numpy.random.default_rng(index)
        tokens = drawn.integers(5, len(tokenizer.lookup_table), size=context, dtype=numpy.int32)
        return sequence.SequenceMetadata(
            request_id=str(index),
            seq_id=index,
            is_prompt=is_prompt,
            seq_data=sequence.SequenceData(tokens),
            compressed_seq_data=sequence.SequenceData(tokenizer.encode(tokens)),
            multi_modal_data=None,
            sampling_params=load("deepinfer.sampling_params").SamplingParams(temperature=1.0),
            block_table=[1 + index + stride * block for block in range(count)],
            seqlen_q=rows,
            seqlen_k=context,
            last_output_token=int(tokens[-1]),
            last_accepted_token=[],
            last_next_n_token=[] if is_prompt else pad(self._runner.vocab_size),
            state_id=1 + index,
        )


def _replace_loading() -> None:
    """Take random weights where the engine would read a checkpoint; the rest of loading is its own."""
    package = importlib.import_module("deepinfer.hugging_face")
    model = importlib.import_module("deepinfer.model_executor.models.deepseek")
    coverage = package.HFCoverage
    package.prepare_hf_coverage = lambda *_, **__: coverage()  # type: ignore[attr-defined]
    package.cover_tied_parameters = lambda given, *_, **__: given  # type: ignore[attr-defined]
    model.load_hf_checkpoint = lambda gpt, **_: fill(gpt)  # type: ignore[attr-defined]
    timer = importlib.import_module("deepinfer.timer")
    for name in ("CUDATimer", "CUDAGraphTimer"):  # their events are no part of a layer
        getattr(timer, name).record = _untimed


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _untimed(*_: Any, **__: Any) -> Iterator[None]:
    """Stand where the engine's timers stand: as a context, and as a decorator."""
    yield


def _replace_profile(blocks: int) -> None:
    """Take a number of cache blocks instead of a profile run at full length."""
    base = importlib.import_module("deepinfer.worker.base").WorkerBase

    def profile(worker: Any) -> int:
        worker.cache_config.num_gpu_blocks = blocks
        return blocks

    base.profile_num_available_blocks = profile
