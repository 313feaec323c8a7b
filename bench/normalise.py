"""Measure what giving an image its normal form costs: rate, memory, share of a cold build, a hit.

    .venv/bin/python bench/normalise.py            writes bench/results/cpu/normalise.json
    .venv/bin/python bench/normalise.py --stream   measures the stream again and keeps the rest

The stream is synthetic: a base of many gigabytes that is the same block again and again, so that
making it costs nothing, and three layers of ours. The cold build is real: an empty engine and an
empty cache but for the downloads; the stand-in base is made, loaded, and every step is run.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dih20.image.archive.normal_archive import NormalArchive, OwnLayer, file_header
from dih20.image.archive.normal_config import ImageFrame
from dih20.image.archive.saved_layers import read_saved
from dih20.image.archive.streams import ChunkReader
from dih20.image.archive.tar_header import END, Member, header, padding
from dih20.paths import REPOSITORY, cache_dir

BASE_LAYERS, BASE_GIB = 7, 2
OWN_LAYERS, FILES, OWN_MIB = 3, 10_000, 400
RESULT = REPOSITORY / "bench" / "results" / "cpu" / "normalise.json"
_BLOCK = random.Random(0).randbytes(2 << 20)


def main() -> None:
    if sys.argv[1:] in (["known"], ["new"]):
        print(json.dumps(measure_stream(is_known=sys.argv[1] == "known")))
        return
    result: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "system": platform.platform(terse=True)},
        "stream": {},
        "cold_build": {},
    }
    if only_stream := sys.argv[1:] == ["--stream"]:
        result |= json.loads(RESULT.read_text())
    # Each in a process of its own: the peak of memory is that of a process.
    result["stream"] = {
        name: _stamped(json.loads(_run(sys.executable, __file__, name)))
        for name in ("known", "new")
    }
    if not only_stream:
        result["cold_build"] = _stamped(measure_build())
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def _stamped(measured: dict[str, Any]) -> dict[str, Any]:
    """Add when, from which commit and beside how much other work it was measured."""
    return {
        **measured,
        "load_average": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _run("git", "-C", str(REPOSITORY), "rev-parse", "HEAD").strip(),
    }


def measure_stream(*, is_known: bool) -> dict[str, Any]:
    """Give rate and memory over a save stream, with the base's file names learnt before or not."""
    base = [f"sha256:{number:064x}" for number in range(BASE_LAYERS)]
    names = {f"{number:064x}/layer.tar": diff_id for number, diff_id in enumerate(base)}
    own = [_digest(_own_layer(number)) for number in range(OWN_LAYERS)]
    if not is_known:
        base = [_digest(_base_layer())] * BASE_LAYERS
        names = {}
    total = sum(len(chunk) for chunk in _saved(base, own))
    frame = ImageFrame(
        architecture="amd64", os="linux", config={}, base_history=(), steps=tuple("abc")
    )
    parts: dict[str, float] = {}
    started, cpu = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory(dir=cache_dir()) as spool:
        stream = cast(BinaryIO, ChunkReader(_saved(base, own)))
        with read_saved(
            stream, base=base, wanted=own, known=names, spool_dir=Path(spool), spool_up_to=1 << 30
        ) as saved:
            parts["read_s"] = round(time.monotonic() - started, 2)
            layers = [OwnLayer(diff_id=diff_id, raw=saved.layers[diff_id]) for diff_id in own]
            archive = NormalArchive(frame=frame, base=base, own=layers)
            written = sum(len(chunk) for chunk in archive.chunks())
    seconds, cpu_s = time.monotonic() - started, time.process_time() - cpu
    return {
        "stream_bytes": total,
        "own_bytes": written,
        "own_files": OWN_LAYERS * FILES,
        "seconds": round(seconds, 2),
        **parts,
        "mb_per_s": round(total / 1e6 / seconds),
        "cpu_s": round(cpu_s, 2),
        "mb_per_cpu_s": round(total / 1e6 / cpu_s),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
    }


def _saved(base: list[str], own: list[str]) -> Iterator[bytes]:
    """Give the save stream of an image: the base's layers, ours, configuration and manifest."""
    names = [f"{number:064x}/layer.tar" for number in range(len(base) + len(own))]
    for name in names[: len(base)]:
        yield file_header(name, BASE_GIB << 30)
        yield from _base_layer()
    for number, name in enumerate(names[len(base) :]):
        yield file_header(name, sum(len(part) for part in _own_layer(number)))
        yield from _own_layer(number)
    config = json.dumps({"rootfs": {"diff_ids": [*base, *own]}}).encode()
    manifest = json.dumps([{"Config": "c.json", "Layers": names}]).encode()
    for name, text in (("c.json", config), ("manifest.json", manifest)):
        yield file_header(name, len(text)) + text + bytes(-len(text) % tarfile.BLOCKSIZE)
    yield END


def _base_layer() -> Iterator[bytes]:
    for _ in range((BASE_GIB << 30) // len(_BLOCK)):
        yield _BLOCK


def _own_layer(number: int) -> Iterator[bytes]:
    """Give a layer's tar, not in the order of its names: many small files and some large ones."""
    sizes = [4 << 10] * FILES
    for place in range(0, FILES, FILES // 100):
        sizes[place] = (OWN_MIB << 20) // 100
    for place in random.Random(number).sample(range(FILES), FILES):
        size, name = sizes[place], f"usr/lib/python3/dist-packages/package/part{place}.py".encode()
        yield header(Member(name=name, mode=0o644, size=size), 1_799_999_999)
        while size:
            yield _BLOCK[: min(size, len(_BLOCK))]
            size -= min(size, len(_BLOCK))
        yield padding(sizes[place])
    yield END


def _digest(chunks: Iterator[bytes]) -> str:
    seen = hashlib.sha256()
    for chunk in chunks:
        seen.update(chunk)
    return "sha256:" + seen.hexdigest()


def measure_build() -> dict[str, Any]:
    """Give the seconds of a cold build by part, the share of the normal form, and a second build's."""
    from dih20.config import load_image
    from dih20.console import Console
    from dih20.image.build import build_image
    from dih20.image.step_plan import chosen_base
    from dih20.lock import Lock
    from dih20.rehearse.dockerd import PrivateEngine

    config, lock = chosen_base(load_image("di-h20"), "stand-in"), Lock.load()
    downloads = cache_dir() / "files"
    with ExitStack() as ends:
        root = Path(ends.enter_context(tempfile.TemporaryDirectory(dir=cache_dir())))
        (root / "cache").mkdir()
        (root / "cache" / "files").symlink_to(downloads)
        os.environ["DI_CACHE"] = str(root / "cache")
        client = ends.enter_context(PrivateEngine("bench", root / "engine")).client()
        runs = []
        for _ in range(2):
            ui, started = Console(as_json=True), time.monotonic()
            built = build_image(ui, client, config, lock)
            runs.append((ui.steps, time.monotonic() - started, built.id))
        size = client.images.get(built.id).attrs["Size"]
    (cold, cold_s, first), (_, again_s, second) = runs
    assert first == second, f"{first} is not {second}"
    seconds = {f"{step.verb} {step.target}": round(step.seconds, 1) for step in cold}
    normal = next(step for step in cold if step.verb == "normalise")
    steps_s = sum(step.seconds for step in cold if step.verb == "layer")
    return {
        "seconds": round(cold_s, 1),
        "parts_s": seconds,
        "image_bytes": size,
        "normalise": {"seconds": round(normal.seconds, 1), **normal.details},
        "share": round(normal.seconds / cold_s, 3),
        "share_of_steps_alone": round(normal.seconds / (steps_s + normal.seconds), 3),
        "again_with_only_hits_s": round(again_s, 2),
    }


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
