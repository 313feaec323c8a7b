"""The faults of the suite, in order."""

from __future__ import annotations

from random import Random

from dih20.parity.sabotage import attention_faults as attention
from dih20.parity.sabotage import cache_faults as cache
from dih20.parity.sabotage import choice_faults as choices
from dih20.parity.sabotage import model_faults as model
from dih20.parity.sabotage import rotation_faults as rotations
from dih20.parity.sabotage import tensor_faults as tensors
from dih20.parity.sabotage import weight_faults as weights
from dih20.parity.sabotage.base import Base
from dih20.parity.sabotage.fault import Fault, Injector

# Every injector draws its layer, and most their phases and magnitude, from the suite's seed.
FAULTS: dict[str, Injector] = {
    "all keys masked": attention.ALL_KEYS_MASKED,
    "page stride ignored": cache.PAGE_STRIDE,
    "width confused": cache.WIDTH,
    "page-split read as interleaved": cache.PAGE_SPLIT,
    "nibble order in the cache": cache.CACHE_NIBBLES,
    "nibble order in the experts": weights.EXPERT_NIBBLES,
    "e8m0 as numbers in a linear": weights.LINEAR_E8M0_NUMBER,
    "e8m0 as numbers in the experts": weights.EXPERT_E8M0_NUMBER,
    "e8m0 as numbers in the Engram table": weights.ENGRAM_E8M0_NUMBER,
    "packed ue8m0 as fp32 in a linear": weights.LINEAR_PACKED_FP32,
    "packed ue8m0 as fp32 in the experts": weights.EXPERT_PACKED_FP32,
    "Engram scale view": weights.ENGRAM_VIEW,
    "expert scale transposed": weights.EXPERT_TRANSPOSED,
    "w1 and w3 swapped, routed": weights.ROUTED_SWAPPED,
    "w1 and w3 swapped, shared": weights.SHARED_SWAPPED,
    "sink missing": attention.SINK_MISSING,
    "sink as a base-2 logit": attention.SINK_BASE_2,
    "sink scaled twice": attention.SINK_SCALED_TWICE,
    "RoPE half-split on queries": rotations.HALF_SPLIT_Q,
    "RoPE half-split on window entries": rotations.HALF_SPLIT_WINDOW,
    "RoPE half-split on index keys": rotations.HALF_SPLIT_INDEX_KEY,
    "RoPE half-split on index queries": rotations.HALF_SPLIT_INDEX_QUERY,
    "RoPE of the other layer kind": rotations.other_base,
    "RoPE position: group number": rotations.POSITION_OF_GROUP_NUMBER,
    "RoPE position: last token": rotations.POSITION_OF_LAST_TOKEN,
    "inverse RoPE missing": rotations.INVERSE_MISSING,
    "inverse RoPE twice": rotations.INVERSE_TWICE,
    "inverse RoPE forwards": rotations.INVERSE_FORWARD,
    "candidates ignored": choices.candidates_ignored,
    "routed gate clamped both sides": model.gate_clamped("routed"),
    "shared gate clamped both sides": model.gate_clamped("shared"),
    "pre mix not delayed": model.pre_not_delayed,
    "pre mix not delayed, again": model.pre_not_delayed,
    "ties in compressed entries": choices.TIES_IN_ENTRIES,
    "ties in index keys": choices.TIES_IN_INDEX_KEYS,
    "noise": tensors.NOISE,
    "noise, again": tensors.NOISE,
    "scaled": tensors.SCALED,
    "one element": tensors.ONE_ELEMENT,
    "channels shifted": tensors.CHANNELS_ROLLED,
    "a head scaled down": tensors.HEAD_LOST,
    "NaN": tensors.NOT_A_NUMBER,
}

NEED_TIGHT_GATE = frozenset(name for name in FAULTS if "gate clamped" in name)


def draw(base: Base, seed: int, name: str, attempt: int = 0) -> Fault:
    """Give one fault for a base; the same seed gives the same layer, phases and magnitude."""
    return FAULTS[name](base, Random(f"{seed}/{name}/{attempt}"))
