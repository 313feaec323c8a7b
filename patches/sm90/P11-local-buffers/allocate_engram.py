"""Engram tables of a group of one: a gather from this GPU's own memory."""


def allocate_engram(
    self,
    engram_group,
    num_entries_per_layer,
    hidden_size,
    max_num_tokens,
    num_entries_per_token,
    dtype,
    num_sf_packs=0,
):
    if PLATFORM.is_sm90 and engram_group.size() == 1:
        from h20_ops.local_buffers import LocalEngramBuffer

        assert self.engram is None, "allocate_engram can only be called once"
        tables = (
            num_entries_per_layer,
            hidden_size,
            max_num_tokens,
            num_entries_per_token,
            dtype,
            num_sf_packs,
        )
        num_gpu_bytes, num_storage_bytes = LocalEngramBuffer.get_storage_size_hint(
            engram_group, *tables
        )
        num_qps, qp_depth, restrict_rd_atomic = LocalEngramBuffer.get_theoretical_config(
            engram_group, len(num_entries_per_layer), max_num_tokens, num_entries_per_token
        )
        self.engram = LocalEngramBuffer(
            group=engram_group,
            num_gpu_bytes=num_gpu_bytes,
            num_rdma_storage_size=num_storage_bytes,
            use_cpu_rdma_storage=not envs.DEEPINFER_ENGRAM_FORCE_GPU_STORAGE,
            num_allocated_qps=num_qps,
            allow_hybrid_mode=True,
            explicitly_destroy=True,
            qp_depth=qp_depth,
            restrict_rd_atomic=restrict_rd_atomic,
        )
        self.engram.set_config(*tables)
        logger.info(
            f"Created {_gib(num_gpu_bytes)} local Engram buffer, {len(num_entries_per_layer)} layers"
        )
        return self.engram
