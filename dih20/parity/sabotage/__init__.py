"""Break the reference on purpose, and see whether the parity tool names what was broken.

A fault is injected where it would happen: in a checkpoint's bytes, in a piece of the model, in a
cache's reader, or, for errors without a known cause, in a tensor between two sites.
"""
