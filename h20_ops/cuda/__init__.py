"""CUDA sources of the operators; compiled on first use by h20_ops.jit."""
