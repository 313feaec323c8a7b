"""Name the first wrong tensor: dumps of named tensors, their comparison, and what it looks like."""
