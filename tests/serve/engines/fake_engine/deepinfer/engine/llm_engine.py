"""An engine that answers 5 6 7 with 8 9 10 ..., one step late, as overlapped scheduling does.

A prompt that begins with 13 is refused by the scheduler, one with 14 dropped, one that begins with
15 gets its tokens in pairs, as accepted drafts do.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

EOS = 99


@dataclass
class _Running:
    params: Any
    prompt: list[int]
    said: list[int] = field(default_factory=list)


class LLMEngine:
    def __init__(self, engine_args: Any) -> None:
        if engine_args.gpu_memory_utilization < 0.1:
            raise ValueError("No available memory for the cache blocks.")
        config = importlib.import_module("deepinfer.config")
        self._rows = importlib.import_module("deepinfer._C.engine").RequestOutput.rows
        self.engine_args = engine_args
        self.model_config = config.ModelConfig(engine_args.max_model_len)
        self.scheduler_config = config.SchedulerConfig(engine_args.max_num_seqs)
        self.eos_id = EOS
        self.multi_modal_processor: Any = object()
        self.running: dict[str, _Running] = {}
        self.in_flight: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.calls: list[str] = []

    @classmethod
    def from_engine_args(cls, engine_args: Any) -> LLMEngine:
        return cls(engine_args)

    def add_request(
        self,
        /,
        user_id: str,
        request_id: str,
        sampling_params: Any,
        prompt_token_ids: Any,
        multi_modal_data: dict[str, Any] | None = None,
    ) -> object | None:
        assert str(prompt_token_ids.dtype) == "int32", prompt_token_ids.dtype
        assert multi_modal_data == {"image_bytes": [], "image_sizes": []}
        if prompt_token_ids[0] == 14:
            return None
        self.running[request_id] = _Running(sampling_params, prompt_token_ids.tolist())
        return object()

    def abort_request(self, request_id: str | list[str]) -> tuple[int, int]:
        for each in [request_id] if isinstance(request_id, str) else request_id:
            self.aborted.append(each)
            self.running.pop(each, None)
            self.in_flight = [row for row in self.in_flight if row["request_id"] != each]
        return 1, 0

    def get_num_unfinished_requests(self) -> int:
        return len(self.running)

    def step(self) -> list[int]:
        self.calls.append("step")
        given = self._give()
        for id, running in list(self.running.items()):
            for _ in range(2 if running.prompt[0] == 15 else 1):
                if id in self.running:
                    self.in_flight.append(self._sample(id, running))
        return given

    def flush_inflight_reqs(self) -> list[int]:
        self.calls.append("flush")
        return self._give()

    def close(self) -> None:
        self.calls.append("close")

    def _give(self) -> list[int]:
        self._rows.clear()
        self._rows.update(enumerate(self.in_flight, start=4096))
        self.in_flight = []
        return list(self._rows)

    def _sample(self, id: str, running: _Running) -> dict[str, Any]:
        token = ([*running.prompt, *running.said])[-1] + 1
        running.said.append(token)
        reason = ""
        if running.prompt[0] == 13:
            reason = "prompt_length_exceeded"
        elif token == EOS and not running.params.ignore_eos:
            reason = "stop"
        elif len(running.said) >= running.params.max_tokens:
            reason = "length"
        if reason:
            del self.running[id]
        best = list(range(running.params.top_logprobs))
        return {
            "request_id": id,
            "token_id": token,
            "finish_reason": reason,
            "finished": bool(reason),
            "token_logprobs": -token / 100,
            "top_token_ids": best,
            "top_logprobs": [-float(each) for each in best],
        }
