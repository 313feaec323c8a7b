"""One small bundle and one host for all tests that only read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bundle.hosts import Host, SmallBundle


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return Host(tmp_path_factory.mktemp("host")).make()


@pytest.fixture(scope="session")
def whole_bundle(tmp_path_factory: pytest.TempPathFactory) -> SmallBundle:
    """A bundle with wheels for every vendor; tests must not change it."""
    root = tmp_path_factory.mktemp("bundle")
    return SmallBundle(root / "bundle", root / "scratch").write()


@pytest.fixture
def own_bundle(tmp_path: Path) -> SmallBundle:
    """A bundle that a test may spoil."""
    return SmallBundle(tmp_path / "bundle", tmp_path / "scratch").write()
