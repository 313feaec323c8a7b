"""Requantise in place; scales are powers of two before and after."""


def set_ue8m0_sf(params):
    from deepinfer import PLATFORM

    if PLATFORM.is_sm90:
        from h20_ops.requant import requant_dense_fp8
        from h20_ops.sm90_contracts import check_gemm_scale

        for param in params:
            assert param.dtype == torch.float8_e4m3fn and param.dim() == 2, (
                f"{param.dtype=}, {param.shape=}"
            )
            rows, columns = param.shape
            assert rows % 128 == 0 and columns % 128 == 0, (
                f"{param.shape=} is not made of 128x128 blocks"
            )
            assert param.sf.shape == (rows // 32, columns // 32), (
                f"{param.shape=}, {param.sf.shape=}"
            )
            weight, scale = requant_dense_fp8(param.data, param.sf)
            param.data.copy_(weight)
            param.sf = scale
            check_gemm_scale("requantised weight", scale, rows=rows, columns=columns)
        return
