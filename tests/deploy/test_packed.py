"""Files of this machine that two deploys send at once: packed once, and gone when both are across."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dih20.console import Console
from dih20.deploy import shipping
from dih20.deploy.packed import PackedFile
from dih20.image.archive import Archive, Delta, ImageLayers
from dih20.paths import build_dir
from tests.deploy.stand import make_tree, wanted_for

DELTA = Delta(
    layers=ImageLayers(image_id="sha256:e", diff_ids=("sha256:a",), tags=("di-h20:0",)),
    send=("sha256:a",),
    skip=(),
    why="",
    verbatim=False,
)


class Packing:
    """Stands in for the writing of an archive, and counts it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(shipping, "write_archive", self._write)

    def _write(self, local: Any, delta: Delta, out: Path, *, advance: Any) -> Archive:
        self.count += 1
        out.write_bytes(b"packed")
        layers = delta.layers
        return Archive(
            path=out,
            sha256="0" * 64,
            size_bytes=6,
            raw_bytes=9,
            image_id=layers.image_id,
            tags=layers.tags,
            complete=True,
            sent=delta.send,
            skipped=delta.skip,
        )


@contextmanager
def sending() -> Iterator[Archive]:
    local: Any = None
    with shipping.packed_image(Console(as_json=True), local, DELTA) as archive:
        yield archive


def test_two_deploys_at_once_send_one_archive_and_the_last_one_removes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packing, together = Packing(monkeypatch), threading.Barrier(2)

    def send(order: int, first_is_across: threading.Event) -> Path:
        with sending() as archive:
            together.wait(60)
            if order == 1:
                assert first_is_across.wait(60)
            assert archive.path.read_bytes() == b"packed"
        first_is_across.set()
        return archive.path

    with ThreadPoolExecutor(2) as pool:
        event = threading.Event()
        paths = list(pool.map(send, range(2), [event, event]))
    assert packing.count == 1
    assert paths[0] == paths[1]
    assert not paths[0].exists()


def test_what_did_not_get_across_is_sent_again_and_what_is_not_whole_is_packed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packing = Packing(monkeypatch)
    with pytest.raises(KeyboardInterrupt), sending() as archive:
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), sending() as again:
        raise KeyboardInterrupt
    assert (packing.count, again) == (1, archive)
    archive.path.write_bytes(b"pack")
    with sending():
        assert archive.path.read_bytes() == b"packed"
    assert packing.count == 2


def test_a_tree_that_another_deploy_sends_is_not_removed_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ui: Console
) -> None:
    wanted = wanted_for(tree=make_tree(tmp_path / "tree"))
    monkeypatch.setattr(shipping, "_files_there", lambda host, folder: frozenset())
    host: Any = SimpleNamespace(put=lambda path, *_, **__: path.read_bytes())
    assert wanted.tree is not None
    path = build_dir() / "deploy" / wanted.tree.remote_name
    with PackedFile(path) as other:
        other.ensure(path.is_file, lambda: shipping.pack_tree(make_tree(tmp_path / "two"), path))
        shipping.ship_tree(ui, host, wanted)
        assert path.is_file()
        other.remove()
    assert not path.exists()
