"""One GEMM with recipe (1, 128, 128); the guard refuses packed scales, which have the same shape."""


def apply_weight_fp8(self, x, bias=None, out_acc=None):
    if PLATFORM.is_sm90:
        from h20_ops.sm90_contracts import fp8_gemm_nt

        assert bias is None and out_acc is None, (
            "the SM90 kernel neither adds a bias nor accumulates"
        )
        if isinstance(x, torch.Tensor):
            assert x.dim() == 2, f"{x.shape=}, {x.stride()=}"
            x = tile_kernels.quant.per_token_cast(x, **get_fp8_cast_params())
        out = self._allocate_output(
            (*x[0].shape[:-1], self.output_size), torch.bfloat16, x[0].device
        )
        fp8_gemm_nt(x, (self.weight, self.weight.sf), out)
        return out
