"""An engine that fails while a job runs in it is named as such, and is no fault of this program."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from dih20.ci.in_image import run_commands
from dih20.console import Console
from dih20.errors import EngineError
from tests.ci.test_image import repository


def test_an_engine_that_times_out_while_a_job_runs_is_named(
    ui: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise requests.exceptions.ReadTimeout("read timed out")

    container = SimpleNamespace(
        put_archive=lambda path, data: True, start=fail, remove=lambda force: None
    )
    containers = SimpleNamespace(create=lambda *_, **__: container, list=lambda **_: [])
    client: Any = SimpleNamespace(containers=containers)
    monkeypatch.setattr("dih20.ci.in_image.REPOSITORY", repository(tmp_path / "repository"))
    with pytest.raises(EngineError, match=r"the engine failed.* the job.*: read timed out"):
        run_commands(ui, client, "di-ci:1", [["true"]], log=tmp_path / "log", limit_s=9)
