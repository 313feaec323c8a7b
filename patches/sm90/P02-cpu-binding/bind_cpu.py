"""Take a share of the allowed cores where upstream's own choice is unknown or forbidden."""


def bind_cpu(local_rank):
    import os

    allowed = sorted(os.sched_getaffinity(0))
    physical = psutil.cpu_count(logical=False)
    share = physical // get_actual_num_gpus() if physical else 0
    wanted = range(local_rank * share, (local_rank + 1) * share)
    if not wanted or not set(wanted) <= set(allowed):
        share = len(allowed) // get_actual_num_gpus()
        chosen = allowed[local_rank * share : (local_rank + 1) * share]
        if not chosen:
            logger.warning(
                f"bind_cpu gpu_id: {local_rank}: {len(allowed)} cores are too few to divide; not bound"
            )
            return
        logger.info(f"bind_cpu gpu_id: {local_rank}, cpus: {chosen} of the allowed ones")
        import deep_cluster.topology

        deep_cluster.topology.set_cpu_affinity(chosen)
        return
