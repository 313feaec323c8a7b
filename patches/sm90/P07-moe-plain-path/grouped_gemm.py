"""Experts are FP8 with scales over 128x128 here (P06), whatever the checkpoint's format was."""


def _grouped_gemm(a, b, d, psum_num_recv_tokens_per_expert, expected_m, fp8_a, fp4_b):
    if fp8_a and PLATFORM.is_sm90:
        from h20_ops.sm90_contracts import m_grouped_fp8_gemm_nt_contiguous

        m_grouped_fp8_gemm_nt_contiguous(
            a, b, d, psum_num_recv_tokens_per_expert, expected_m=expected_m
        )
        return
