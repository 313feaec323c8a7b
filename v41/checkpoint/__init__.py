"""The released checkpoint format: config.json, an index, safetensors shards.

reader = CheckpointReader(folder)      # strict on names, shapes, dtypes; reads nothing big
reader.config                          # ModelConfig
weights = load_weights(reader, "trained")
write_checkpoint(folder, config_json, weights)
"""

from __future__ import annotations

from v41.checkpoint.reading import CheckpointReader as CheckpointReader
from v41.checkpoint.weights import load_weights as load_weights
from v41.checkpoint.writing import write_checkpoint as write_checkpoint
