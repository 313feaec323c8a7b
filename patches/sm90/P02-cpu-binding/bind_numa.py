def bind_numa(node: int) -> int:
    if node < 0:
        # The kernel names no node for a GPU of a virtual machine; libnuma would index by it.
        print(f"the GPU has no NUMA node ({node}): memory is not bound", file=sys.stderr)
        return -1
