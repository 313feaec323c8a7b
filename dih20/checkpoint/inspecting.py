"""What a checkpoint folder holds: layers, formats, sizes, and what the engine would refuse."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from dih20.console import Console
from dih20.errors import ConfigError
from dih20.groups import ensure


def inspect(ui: Console, path: str, *, tensors: bool) -> dict[str, Any]:
    """Print the summary; a folder that is not in the released format is an error."""
    ensure(ui, "torch")
    from v41.canary.constraints import broken_rules
    from v41.checkpoint import CheckpointReader
    from v41.errors import CheckpointError

    try:
        reader = CheckpointReader(Path(path))
    except CheckpointError as broken:
        raise ConfigError(
            found=broken.found, expected=broken.expected, remedy=broken.next_step
        ) from broken
    kinds = [layer.name for layer in reader.config.layers]
    ui.table(("layer", "kind"), [(str(i), kind) for i, kind in enumerate(kinds)])
    sizes, counts, values = Counter[str](), Counter[str](), Counter[str]()
    for spec in reader.specs:
        stored = [spec.name] + ([spec.scale_name] if spec.scale_name else [])
        sizes[spec.storage] += sum(reader.size_bytes(name) for name in stored)
        counts[spec.storage] += 1
        count = 1
        for extent in spec.shape:
            count *= extent
        values[spec.storage] += count
    rows = [
        (storage, str(counts[storage]), f"{values[storage] / 1e6:.2f} M", f"{size / 1e6:.2f} MB")
        for storage, size in sizes.most_common()
    ]
    ui.table(("stored as", "tensors", "values", "bytes, with scales"), rows)
    if tensors:
        shown = [(s.name, s.storage, "x".join(map(str, s.shape))) for s in reader.specs]
        ui.table(("tensor", "stored as", "shape"), shown)
    ui.line(f"{len(reader.extra)} tensors beyond the text model (vision, drafts)")
    broken_names = {rule.name: rule.says for rule in broken_rules(reader.raw_config)}
    for name, says in broken_names.items():
        ui.warn(f"the engine would refuse this config.json: {name}: {says}")
    return {
        "layers": kinds,
        "bytes": dict(sizes),
        "values": dict(values),
        "extra": len(reader.extra),
        "broken_rules": broken_names,
    }
