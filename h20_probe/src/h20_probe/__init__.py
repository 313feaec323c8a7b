"""Prove on a Hopper host that CUDA starts, what is mapped, and how fast memory copies."""

from __future__ import annotations

__version__ = "0.1.0"
