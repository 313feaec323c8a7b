"""Is the patched engine right on this GPU? Stage by stage, each with its own record.

The part that runs beside the engine needs torch, safetensors, numpy and PyYAML, and of ours v41,
h20_ops, dih20.errors, dih20.paths and dih20.parity: `python -m dih20.engine_check` works on a bare host.
"""
