"""The patched DeepInfer 0.1.0 behind driver.Driver, one step at a time in this process."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dih20.engine_check.driver import Ask, Reply, StepRow
from dih20.engine_check.engine_environment import arguments
from dih20.engine_check.engine_steps import StepWatch
from dih20.engine_check.swapping import replaced

MOST_BLOCKS = 512  # of 128 tokens
_MOST_STEPS = (
    20_000  # of one call: far beyond any case, so that a request that never ends is noticed
)


class EngineDriver:
    """See driver.Driver. The environment must be set before (engine_environment)."""

    def __init__(self, worker: str, checkpoint: Path, memory: float) -> None:
        load = importlib.import_module
        self._sampling = load("deepinfer.sampling_params").SamplingParams
        self._output = load("deepinfer._C.engine").RequestOutput
        self._sampler_module = load("deepinfer.model_executor.layers.sampler")
        self._envs = load("deepinfer").envs
        given = arguments(worker, checkpoint, memory)
        engine_args = load("deepinfer.engine.arg_utils").EngineArgs(**given)
        engine_class = load("deepinfer.engine.llm_engine").LLMEngine
        base = load("deepinfer.worker.base").WorkerBase
        with replaced(base, "profile_num_available_blocks", _few_blocks(base)):
            self.engine = engine_class.from_engine_args(engine_args)
        self.worker = self.engine.driver_worker
        self.runner = self.worker.model_runner
        self._count = 0
        self.counts = {"steps": 0, "empty_steps": 0, "seconds": 0.0}  # empty: of no request
        self._now: list[Any] = []  # SequenceMetadata of the step that runs
        self._metadata: Any = None
        self._replays = 0
        self._watch_steps()
        self._watch_replays()

    @property
    def model(self) -> Any:
        return self.runner.model

    @property
    def caches(self) -> Any:
        """Give the engine's cache: gpu_blocks and gpu_states, uint8 (pages, bytes)."""
        return self.worker.cache_engine

    def _watch_steps(self) -> None:
        """Know which sequences the step that runs is for, before its forward pass begins."""
        before = self.runner.execute_main_model

        def execute_main_model(seq_metadata_list: Any, *args: Any, **kwargs: Any) -> Any:
            self._now = list(seq_metadata_list)
            output = before(seq_metadata_list, *args, **kwargs)
            self._metadata = output.input_metadata
            return output

        self.runner.execute_main_model = execute_main_model

    def _watch_replays(self) -> None:
        """Count them: without captured graphs the engine decodes eager, and does not say so."""
        graphs = self.runner.cuda_graph_runner
        if graphs is None:
            return
        before = graphs.replay

        def replay(*args: Any, **kwargs: Any) -> Any:
            self._replays += 1
            return before(*args, **kwargs)

        graphs.replay = replay

    def graph_replays(self) -> int:
        return self._replays

    def overlaps(self) -> bool:
        return bool(self._envs.DEEPINFER_ZERO_OVERHEAD_SCHEDULING)

    def skip_step(self) -> bool:
        return all(bool(each.is_placeholder) for each in self._now)

    def running(self) -> list[int]:
        """Give the requests of the step that runs, by their place in the call of generate."""
        return [int(each.request_id) - self._first for each in self._now]

    def generate(self, asks: Sequence[Ask]) -> list[Reply]:
        import numpy

        self._first = self._count
        replies = [Reply() for _ in asks]
        for ask in asks:
            pictures: dict[str, list[Any]] = {"image_bytes": [], "image_sizes": []}
            sequence = self.engine.add_request(
                user_id="0",
                request_id=str(self._count),
                sampling_params=self._sampling(**_sampling(ask)),
                prompt_token_ids=numpy.asarray(ask.prompt, dtype=numpy.int32),
                multi_modal_data=pictures if self.engine.multi_modal_processor else None,
            )
            assert sequence is not None, f"the engine dropped request {self._count}"
            self._count += 1
        self._run(asks, replies)
        return replies

    def _run(self, asks: Sequence[Ask], replies: list[Reply]) -> None:
        for _ in range(_MOST_STEPS):
            unfinished = self.engine.has_unfinished_requests()
            begun, self._now = time.monotonic(), []
            raw = self.engine.step() if unfinished else self.engine.flush_inflight_reqs()
            self.counts["steps"] += 1
            self.counts["empty_steps"] += self.skip_step()
            self.counts["seconds"] += time.monotonic() - begun
            for address in raw:
                output = self._output.clone(address)
                place = int(output.request_id) - self._first
                _take(output, asks[place], replies[place])
            if not unfinished:
                return
        raise AssertionError(f"requests still run after {_MOST_STEPS} steps")

    @contextmanager
    def sync_guard(self) -> Iterator[None]:
        with replaced(self._envs, "DEEPINFER_DISABLE_SYNC_GUARD", False):
            yield

    @contextmanager
    def eager(self) -> Iterator[None]:
        with replaced(self.runner, "use_cuda_graph", False):
            yield

    @contextmanager
    def logits_through(self, change: Callable[[Any], Any]) -> Iterator[None]:
        healthy = self._sampler_module.get_logits

        def get_logits(*args: Any, **kwargs: Any) -> Any:
            return change(healthy(*args, **kwargs))

        with replaced(self._sampler_module, "get_logits", get_logits):
            yield

    @contextmanager
    def step_rows(self) -> Iterator[list[StepRow]]:
        watch = StepWatch(self)
        with self.logits_through(watch.after_forward):
            yield watch.rows
        watch.finish()

    def step_metadata(self) -> Any:
        """Give the input metadata of the step that runs."""
        return self._metadata

    def clear_caches(self) -> None:
        import torch

        torch.cuda.synchronize()
        self.caches.gpu_blocks.zero_()
        self.caches.gpu_states.zero_()
        torch.cuda.synchronize()

    def close(self) -> None:
        self.engine.close()


def _few_blocks(base: Any) -> Callable[[Any], int]:
    """Measure as the engine does, and take a few blocks: several engines share the GPU here."""
    healthy = base.profile_num_available_blocks

    def profile_num_available_blocks(worker: Any) -> int:
        blocks = min(int(healthy(worker)), MOST_BLOCKS)
        worker.cache_config.num_gpu_blocks = blocks
        return blocks

    return profile_num_available_blocks


def _sampling(ask: Ask) -> dict[str, Any]:
    return {
        "temperature": ask.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "ignore_eos": ask.past_end or bool(ask.golden),
        "max_tokens": ask.max_tokens,
        "prompt_logprobs": ask.prompt_logprobs,
        "top_logprobs": ask.top,
        "golden_token_ids": list(ask.golden) or None,
        "seq_seed": 0,
    }


def _take(output: Any, ask: Ask, reply: Reply) -> None:
    """Add what one step gave; an output without a token only says why its request ended."""
    if output.finished and output.finish_reason not in ("stop", "length"):
        reply.fault = f"the engine ended the request: {output.finish_reason}"
        return
    reply.tokens.append(int(output.token_id))
    reply.logprobs.append(float(output.token_logprobs))
    if ask.top:
        reply.best.append(int(output.top_token_ids[0]))
    if ask.prompt_logprobs and output.prompt_logprobs:
        reply.prompt_logprobs = [float(value) for value in output.prompt_logprobs]
    if output.finished:
        reply.finish = str(output.finish_reason)
