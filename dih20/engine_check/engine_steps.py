"""Every sequence after every decode step of the real engine: its logits, and the bytes of its cache."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from dih20.engine_check.driver import StepRow

_BLOCK = 128  # tokens of a cache block


class StepWatch:
    """Copies on the GPU while steps run, hashes afterwards. driver: an EngineDriver."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.rows: list[StepRow] = []
        self._kept: list[tuple[int, int, Any, list[Any]]] = []
        self._steps: Counter[int] = Counter()

    def after_forward(self, logits: Any) -> Any:
        """Called with a step's logits, when its forward pass has been queued."""
        metadata = self.driver.step_metadata()
        if metadata.is_prompt or self.driver.skip_step():
            return logits
        caches = self.driver.caches
        ring = caches.gpu_cache[0].swa_cache.shape[1]
        requests = self.driver.running()
        positions = metadata.positions[: len(requests)].tolist()
        slots = metadata.slot_mapping_store_swa[: len(requests)].tolist()
        for row, request in enumerate(requests):
            blocks = metadata.block_tables[row, : positions[row] // _BLOCK + 1].long()
            parts = [
                caches.gpu_blocks[blocks].clone(),
                caches.gpu_states[slots[row] // ring].clone(),
            ]
            self._kept.append((request, self._steps[request], logits[row].clone(), parts))
            self._steps[request] += 1
        return logits

    def finish(self) -> None:
        for request, step, logits, parts in self._kept:
            digest = hashlib.sha256()
            for part in parts:
                digest.update(part.cpu().numpy().tobytes())
            cache = digest.hexdigest()
            self.rows.append(StepRow(request=request, step=step, logits=logits.cpu(), cache=cache))
        self._kept = []
