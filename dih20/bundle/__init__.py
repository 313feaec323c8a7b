"""Everything the engine needs on a bare GPU host, as numbered parts, a manifest and a script.

making.py      gather entries, write parts and manifest
onhost/        what runs on the host: the standard library and dih20.errors alone
"""
