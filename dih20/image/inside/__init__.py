"""Scripts that run inside an image or container: standard library only, one file each.

The tools import them too, so that facts and verdicts have one source.
"""
