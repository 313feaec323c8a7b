"""Room for FP8 experts: weights (experts, rows, columns), scales (experts, rows / 128, columns / 128)."""


def materialize_hf_parameter(param, *, device, packed_fp4=False):
    if packed_fp4 and PLATFORM.is_sm90:
        assert param.ndim == 2 and param.dtype == torch.float8_e4m3fn, (
            f"{param.shape=}, {param.dtype=}"
        )
        columns, remainder = divmod(param.shape[0], param.n_experts)
        rows = param.shape[1]
        assert remainder == 0 and columns % 128 == 0 and rows % 128 == 0, (
            f"{param.shape=}, {param.n_experts=}"
        )
        assert tuple(param.sf.shape) == (param.shape[0] // 32, rows // 32), f"{param.sf.shape=}"
        weight = torch.empty(
            (param.n_experts, rows, columns), dtype=torch.float8_e4m3fn, device=device
        )
        result = nn.Parameter(weight, requires_grad=False)
        for name, value in param.__dict__.items():
            if name != "sf":
                setattr(result, name, value)
        result.sf = torch.empty(
            (param.n_experts, rows // 128, columns // 128),
            dtype=PLATFORM.gemm_sf_type,
            device=device,
        )
        return result
