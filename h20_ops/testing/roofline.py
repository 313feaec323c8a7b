"""What a card allows at best for a given amount of work, term by term.

The H20 has the H200's SM with about a quarter of its matrix rate: 148 of 989 bf16 TFLOP/s over 78
of 132 SMs. Everything else per SM is the same, so exponentials and integer work (dequantisation)
scale with the number of SMs alone, and memory with the card's own bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Card:
    """Peak rates: bf16_tflops of dense MMA, memory in GB/s, boost clock in GHz."""

    name: str
    num_sms: int
    bf16_tflops: float
    memory_gbps: float
    clock_ghz: float


H200 = Card(name="H200", num_sms=132, bf16_tflops=989.0, memory_gbps=4800.0, clock_ghz=1.98)
H20 = Card(name="H20", num_sms=78, bf16_tflops=148.0, memory_gbps=4000.0, clock_ghz=1.98)
CARDS = {"h200": H200, "h20": H20}

EXPS_PER_CYCLE_PER_SM = 16
ALU_OPS_PER_CYCLE_PER_SM = 64


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one call has to do at least.

    flops: of the two matrix products, 2 per multiply-add. bytes_moved: each needed byte once.
    exps: exponentials. alu_ops: integer operations of dequantisation, 0 for bf16 inputs.
    mma_speed: rate of the products against bf16 ones, 2 for FP8.
    """

    flops: float
    bytes_moved: float
    exps: float = 0.0
    alu_ops: float = 0.0
    mma_speed: float = 1.0


def terms_us(work: Work, card: Card) -> dict[str, float]:
    """Return the time in microseconds each unit of the card needs for the work, if alone."""
    cycles_per_us = card.clock_ghz * 1e3 * card.num_sms
    return {
        "mma": work.flops / (card.bf16_tflops * work.mma_speed) / 1e6,
        "memory": work.bytes_moved / card.memory_gbps / 1e3,
        "exp": work.exps / EXPS_PER_CYCLE_PER_SM / cycles_per_us,
        "dequant": work.alu_ops / ALU_OPS_PER_CYCLE_PER_SM / cycles_per_us,
    }


def lower_bound_us(work: Work, card: Card) -> float:
    """Return the largest term: no schedule on this card is faster."""
    return max(terms_us(work, card).values())


def mla_work(
    *,
    rows: int,
    heads: int,
    topk: int,
    bytes_moved: float,
    dequantised_values: float = 0.0,
    alu_ops_per_value: float = 0.0,
) -> Work:
    """Work of sparse MLA with d = 512 for QK and PV: 4 * 512 flops per (row, head, key)."""
    pairs = float(rows) * heads * topk
    return Work(
        flops=pairs * 4 * 512,
        bytes_moved=bytes_moved,
        exps=pairs,
        alu_ops=dequantised_values * alu_ops_per_value,
    )
