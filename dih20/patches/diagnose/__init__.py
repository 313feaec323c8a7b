"""Look into a ported tree for the faults that are known to make an SM90 port print garbage."""
