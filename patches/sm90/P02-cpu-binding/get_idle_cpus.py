"""The matcher's workers run unbound where upstream's own choice is unknown or forbidden."""


def get_idle_cpus(local_rank):
    import os

    physical = psutil.cpu_count(logical=False)
    share = physical // get_actual_num_gpus() if physical else 0
    wanted = range(local_rank * share, local_rank * share + envs.DEEPINFER_SO_BUILDER_CPUS)
    if not share or not set(wanted) <= os.sched_getaffinity(0):
        return []
