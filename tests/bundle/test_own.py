"""What of this repository goes in: one state of it, and what the engine's check needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dih20.bundle import own
from dih20.bundle.request import Request
from dih20.errors import UsageError

NEEDED = (
    "own/dih20/engine_check/__init__.py",
    "own/dih20/parity/maps/deepinfer.yaml",
    "own/h20_ops/__init__.py",
    "own/dropins/flash_mla/flash_mla/__init__.py",
    "own/v41/canary/data/tokenizer.json",
    "own/patches/sm90/series",
    "own/di.lock.yaml",
    "own/COMMIT",
)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    (tmp_path / "deepinfer").mkdir()
    (tmp_path / "deepinfer" / "__init__.py").write_text("")
    return tmp_path


def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests run in a tree where somebody works."""
    monkeypatch.setattr(own, "commit", lambda: "c" * 40)
    monkeypatch.setattr(own, "source_hashes", lambda tree: {"tree": "t"})


def test_everything_that_the_check_needs_is_in(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady(monkeypatch)
    names = {entry.name for entry in own.snapshot(Request.of(), engine).entries}
    assert set(NEEDED) <= names
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in names)


def test_the_canary_can_be_left_to_the_host(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steady(monkeypatch)
    found = own.snapshot(Request.of(without="canary"), engine).entries
    assert not any(entry.name.startswith(own.CANARY) for entry in found)
    assert any(entry.name.startswith("own/v41/") for entry in found)


def test_a_tree_that_changes_while_it_is_read_is_refused(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady(monkeypatch)
    counter = iter(range(1000))
    monkeypatch.setattr(own, "source_hashes", lambda tree: {"tree": str(next(counter))})
    monkeypatch.setattr(own, "FOLDERS", ("recipes",))
    with pytest.raises(UsageError, match="change while they are read"):
        own.snapshot(Request.of(), engine)


def test_content_is_kept_from_the_moment_it_was_read(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady(monkeypatch)
    for name in ("recipes/a.yaml", "LICENSE"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("first")
    monkeypatch.setattr(own, "REPOSITORY", tmp_path)
    monkeypatch.setattr(own, "FOLDERS", ("recipes",))
    found = own.snapshot(Request.of(), engine).entries
    (tmp_path / "recipes/a.yaml").write_text("second, and longer")
    entry = next(entry for entry in found if entry.name == "own/recipes/a.yaml")
    with entry.open() as content:
        assert content.read() == b"first" and entry.size == 5
