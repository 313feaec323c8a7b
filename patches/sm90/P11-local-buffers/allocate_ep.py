"""Experts of a group of one: dispatch and combine without communication."""


def allocate_ep(
    self, ep_group, max_num_tokens, hidden_size, num_topk, num_experts, use_fp8_dispatch
):
    if PLATFORM.is_sm90 and ep_group.size() == 1:
        from h20_ops.local_buffers import LocalEPBuffer

        sizes = dict(
            group=ep_group,
            num_max_tokens_per_rank=max_num_tokens,
            hidden=hidden_size,
            num_topk=num_topk,
            use_fp8_dispatch=use_fp8_dispatch,
            allow_hybrid_mode=True,
            allow_multiple_reduction=True,
        )
        if self.ep is None:
            self.ep = LocalEPBuffer(**sizes, explicitly_destroy=True)
            logger.info(
                f"Created {_gib(self.ep.num_bytes)} local expert buffer: {max_num_tokens=}, {num_experts=}"
            )
        else:
            assert self.ep.num_bytes >= LocalEPBuffer.get_buffer_size_hint(**sizes)
        return self.ep
