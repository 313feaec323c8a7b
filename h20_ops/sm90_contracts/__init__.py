"""DeepGEMM calls as its SM90 kernels want them, checked before the kernel sees the arguments.

DeepGEMM's SM100 and SM90 kernels share names and differ in what they accept: 32-wide packed ue8m0
scales against 128-wide fp32 ones, any page size against exactly 64. Some wrong calls abort with an
assertion of the host code, some are read as something else and give numbers. Each function here
says which argument is wrong, what it is, what SM90 takes and where that is written, and only then
calls `deep_gemm`, which is imported on the first call.

    fp8_gemm_nt(a, b, d)                                   dense linear layers
    m_grouped_fp8_gemm_nt_contiguous(a, b, d, ends)        experts, rows grouped by expert
    m_grouped_fp8_gemm_nt_masked(a, b, d, counts, expected_m=)
    fp8_einsum_bhr_hdr_bhd(a, b, d)                        grouped output projection
    fp8_mqa_logits, fp8_paged_mqa_logits                   DeepGEMM's own FP8 indexer logits
    check_gemm_scale(name, scale, rows=, columns=)         at load time

The contracts were read in DeepGEMM 2.8.2.
"""

from __future__ import annotations

from h20_ops.sm90_contracts.gemm import (
    fp8_einsum_bhr_hdr_bhd,
    fp8_gemm_nt,
    m_grouped_fp8_gemm_nt_contiguous,
    m_grouped_fp8_gemm_nt_masked,
)
from h20_ops.sm90_contracts.logits import fp8_mqa_logits, fp8_paged_mqa_logits
from h20_ops.sm90_contracts.scales import check_gemm_scale

__all__ = [
    "check_gemm_scale",
    "fp8_einsum_bhr_hdr_bhd",
    "fp8_gemm_nt",
    "fp8_mqa_logits",
    "fp8_paged_mqa_logits",
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nt_masked",
]
