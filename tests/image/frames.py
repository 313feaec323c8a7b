"""A small image frame that tests build normal images from."""

from __future__ import annotations

from dih20.image.archive.normal_config import ImageFrame

FRAME = ImageFrame(
    architecture="amd64",
    os="linux",
    config={"Env": ["A=1"], "Labels": {"b": "2"}, "Hostname": "0123456789ab", "Cmd": []},
    base_history=({"created": "2025-01-01T00:00:00Z", "created_by": "base"},),
    steps=("10-one", "20-none"),
)
