"""An image archive as a value: the layers of an image, a delta against a receiver, writing, loading.

layers = image_layers(client, "di-h20:0123456789ab")
delta = make_delta(layers, held_layers(receiver), receiver=store_kind(receiver))
archive = write_archive(client, delta, build_dir() / "deploy" / "image.tar.zst")
load_archive(receiver, archive.path, image_id=layers.image_id)
"""

from dih20.image.archive.delta import Delta, make_delta
from dih20.image.archive.layers import (
    ImageLayers,
    StoreKind,
    chain_ids,
    held_layers,
    image_layers,
    store_kind,
    store_kind_of,
)
from dih20.image.archive.load import load_archive, load_chunks
from dih20.image.archive.write import Archive, write_archive

__all__ = [
    "Archive",
    "Delta",
    "ImageLayers",
    "StoreKind",
    "chain_ids",
    "held_layers",
    "image_layers",
    "load_archive",
    "load_chunks",
    "make_delta",
    "store_kind",
    "store_kind_of",
    "write_archive",
]
