"""Rotate back once, cast over 128, multiply by groups, project. context: bf16 (tokens, heads, head_dim)."""


def _wv_and_o_proj(self, context, positions):
    if PLATFORM.is_sm90:
        from h20_ops.sm90_contracts import fp8_einsum_bhr_hdr_bhd

        assert isinstance(context, torch.Tensor) and not self.use_fused_norm_rope_attn_rope_cast
        self.rotary_emb(positions, context[..., -self.qk_rope_head_dim :], conjugate=True)
        tokens = context.shape[0]
        fp8, sf = tile_kernels.quant.per_token_cast(
            context.view(tokens, -1), **get_fp8_cast_params()
        )
        fp8 = fp8.view(tokens, self.n_wv_group, self.wv_group_dim)
        sf = sf.view(tokens, self.n_wv_group, self.wv_group_dim // get_fp8_casting_granularity())
        wv = torch.empty(
            (tokens, self.n_wv_group, self.o_head_dim), dtype=torch.bfloat16, device=fp8.device
        )
        fp8_einsum_bhr_hdr_bhd((fp8, sf), (self.wv_weight, self.wv_weight.sf), wv)
        if self.einsum_out_clamp_value is not None:
            wv.clamp_(min=-self.einsum_out_clamp_value, max=self.einsum_out_clamp_value)
        return self.out_proj(wv.flatten(1, 2))
