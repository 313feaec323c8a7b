"""A weight that did not pass the requantiser (P05) stops here and not in a GEMM that misreads it."""


def __init__(self, input_size, output_size, use_fp32_output=False, *, weight, bias=None):
    if PLATFORM.is_sm90 and weight.element_size() == 1:
        from h20_ops.sm90_contracts import check_gemm_scale

        check_gemm_scale(
            "ReplicatedLinear weight.sf", weight.sf, rows=output_size, columns=input_size
        )
