"""Operator tests and benchmarks on the GPU at hand."""
