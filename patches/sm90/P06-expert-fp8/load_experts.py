"""Read, re-encode and store one expert at a time: two experts of memory more than the result.

What could not be kept exactly is told once, at the end: which experts is `./inv checkpoint requant`'s to list.
"""


def _load_expert_params(model, params, coverage, hf_dir):
    from deepinfer import PLATFORM

    if PLATFORM.is_sm90 and coverage.expert_tensors:
        from h20_ops.reblock import reblock_fp4
        from h20_ops.sm90_contracts import check_gemm_scale

        local_ids = _local_expert_ids(model, params)
        stats = {"expert_params": 0, "experts": 0, "expert_skipped": 0}
        inexact = {}
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
                    names, told = per_expert[expert], f"{model_name}[{expert}]"
                    packed = reader.read_concat(names, param.device)
                    scale = reader.read_concat((scale_name(name) for name in names), param.device)
                    assert packed.shape == (rows, columns // 2), (
                        f"{told}: weight {tuple(packed.shape)}"
                    )
                    assert scale.shape == (rows, columns // 32), (
                        f"{told}: scale {tuple(scale.shape)}"
                    )
                    assert scale.dtype == torch.float8_e8m0fnu, f"{told}: scale {scale.dtype}"
                    result = reblock_fp4(packed, scale, name=told)
                    if not result.loss.is_exact:  # on a GPU, bad scales are refused here
                        inexact[told] = result.loss
                    check_gemm_scale(told, result.scales, rows=rows, columns=columns)
                    param.data[local].copy_(result.values)
                    param.sf[local].copy_(result.scales)
                    stats["experts"] += 1
            stats["expert_params"] += 1
        if inexact:
            worst = max(
                inexact, key=lambda each: inexact[each].num_inexact / inexact[each].num_values
            )
            logger.warning(
                f"inexact experts: {len(inexact)} of {stats['experts']}, worst {worst}: {inexact[worst]} "
                "(exact where scales in a block span at most 2^14); "
                "`./inv checkpoint requant` lists what changed most"
            )
        else:
            logger.info(f"inexact experts: 0 of {stats['experts']}")
        return stats
