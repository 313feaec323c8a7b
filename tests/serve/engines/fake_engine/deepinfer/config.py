"""Settings as the engine keeps them."""

from __future__ import annotations


class ModelConfig:
    def __init__(self, max_model_len: int) -> None:
        self.max_model_len = max_model_len

    def get_vocab_size(self) -> int:
        return 1000


class SchedulerConfig:
    def __init__(self, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
