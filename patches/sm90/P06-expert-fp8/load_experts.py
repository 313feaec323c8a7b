"""Read, re-encode and store one expert at a time: two experts of memory more than the result."""


def _load_expert_params(model, params, coverage, hf_dir):
    from deepinfer import PLATFORM

    if PLATFORM.is_sm90 and coverage.expert_tensors:
        from h20_ops.requant import requant_expert_fp4
        from h20_ops.sm90_contracts import check_gemm_scale

        local_ids = _local_expert_ids(model, params)
        stats = {"expert_params": 0, "experts": 0, "expert_skipped": 0}
        for model_name, per_expert in sorted(coverage.expert_tensors.items()):
            param = params.get(model_name)
            if param is None:
                stats["expert_skipped"] += 1
                continue
            if model_name not in local_ids:
                raise RuntimeError(f"HF expert parameter has no local expert layout: {model_name}")
            ids = local_ids[model_name]
            assert param.dim() == 3 and param.dtype == torch.float8_e4m3fn, (
                f"{model_name}: {param.shape} {param.dtype}"
            )
            assert param.shape[0] == len(ids), (
                f"{model_name}: room for {param.shape[0]} experts, {len(ids)} are local"
            )
            assert max(ids, default=-1) < len(per_expert), (
                f"{model_name}: expert {max(ids)} of {len(per_expert)}"
            )
            _, rows, columns = param.shape
            with _TensorReader(hf_dir, coverage.weight_map) as reader:
                for local, expert in enumerate(ids):
                    names = per_expert[expert]
                    packed = reader.read_concat(names, param.device)
                    scale = reader.read_concat((scale_name(name) for name in names), param.device)
                    assert packed.shape == (rows, columns // 2), (
                        f"{model_name}[{expert}]: weight {tuple(packed.shape)}"
                    )
                    assert scale.shape == (rows, columns // 32), (
                        f"{model_name}[{expert}]: scale {tuple(scale.shape)}"
                    )
                    assert scale.dtype == torch.float8_e8m0fnu, (
                        f"{model_name}[{expert}]: scale {scale.dtype}"
                    )
                    weight, block_scale = requant_expert_fp4(
                        packed, scale, name=f"{model_name}[{expert}]"
                    )
                    check_gemm_scale(
                        f"{model_name}[{expert}]", block_scale, rows=rows, columns=columns
                    )
                    param.data[local].copy_(weight)
                    param.sf[local].copy_(block_scale)
                    stats["experts"] += 1
            stats["expert_params"] += 1
        return stats
