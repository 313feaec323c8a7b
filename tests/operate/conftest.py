"""Servers to operate on: a fake one as a process of this machine, or in the container of a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.conftest import clean_host as clean_host
from tests.deploy.conftest import host_engine as host_engine
from tests.deploy.conftest import image as image
from tests.deploy.conftest import make_host as make_host
from tests.deploy.conftest import work_dir as work_dir


@pytest.fixture(autouse=True)
def own_build_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DI_BUILD", str(tmp_path / "build"))
    return tmp_path / "build"
