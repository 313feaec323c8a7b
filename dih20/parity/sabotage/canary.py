"""The suite's run on the canary: a text of facts, long enough for every choice to matter."""

from __future__ import annotations

from pathlib import Path

import torch

from dih20.parity.checkpoints import load_oracle
from dih20.parity.sabotage.base import Base
from v41.canary import FOLDER
from v41.canary.facts import fact_context
from v41.canary.tokenizer import Tokenizer

# Beyond the canary's 512 candidate positions, and over several blocks of the paged cache.
PROMPT_TOKENS = 640
DECODED = 2


def canary_base(checkpoint: str = "") -> Base:
    """Give the base of the committed canary, or of a checkpoint with its tokenizer."""
    folder = Path(checkpoint) if checkpoint else FOLDER
    oracle = load_oracle(folder, "trained")
    ids = Tokenizer.load(folder / "tokenizer.json").encode(fact_context(seed=1).text)
    return Base(
        oracle=oracle,
        tokens=torch.tensor([ids[: PROMPT_TOKENS + DECODED]], dtype=torch.int64),
        rows=(PROMPT_TOKENS, *[1] * DECODED),
        data_class="canary",
    )
