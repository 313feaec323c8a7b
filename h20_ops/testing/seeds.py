"""Seeds that come from the name of what they are for, so that a failure replays alone."""

from __future__ import annotations

import hashlib

import torch


def seed_of(name: str) -> int:
    """Return a 63-bit seed that depends on the name only."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def generator_for(name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator on `device`, seeded by the name."""
    generator = torch.Generator(device=device)
    generator.manual_seed(seed_of(name))
    return generator
