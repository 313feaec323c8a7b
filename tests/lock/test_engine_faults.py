"""An engine or registry that stops answering leads to the command to run, not to a fault of this program."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import requests
import urllib3

from dih20.config.mirrors import Mirrors
from dih20.console import Console
from dih20.errors import FetchError, Unresolved
from dih20.fetch import base_image
from dih20.index.session import open_session
from dih20.lock import Base, base_pins, engine, registry

BASE = Base(
    name="vllm",
    image="team/base:v1",
    suite="noble",
    architecture="amd64",
    digest=f"sha256:{1:064x}",
    python_tag="cp312",
    torch="none",
    glibc="2.39",
)
FAULTS = [
    requests.exceptions.ReadTimeout("read timed out"),
    requests.exceptions.ConnectionError("connection reset"),
    urllib3.exceptions.ProtocolError("connection broken"),
]


@pytest.fixture(params=FAULTS, ids=lambda fault: type(fault).__name__)
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Exception:
    """A client of the engine each of whose calls ends in this fault."""

    def fail(*_: Any, **__: Any) -> Any:
        raise request.param

    client = SimpleNamespace(
        api=SimpleNamespace(inspect_distribution=fail, pull=fail),
        images=SimpleNamespace(get=fail),
        containers=SimpleNamespace(create=fail),
        version=fail,
    )
    for module in (registry, base_pins, base_image):
        monkeypatch.setattr(module, "engine_client", lambda timeout_s=60: client)
    monkeypatch.setattr("docker.from_env", lambda timeout: client)
    given: Exception = request.param
    return given


def test_a_tag_that_could_not_be_asked_for_stays_unresolved(fault: Exception) -> None:
    with pytest.raises(Unresolved, match=f"could not ask what team/base:v1 is.*{fault}") as caught:
        registry.resolve_digest("team/base:v1", open_session(Mirrors()))
    assert "`./inv lock --only base" in caught.value.remedy


def test_a_package_list_that_the_engine_did_not_give_stays_unresolved(fault: Exception) -> None:
    with pytest.raises(Unresolved, match=str(fault)):
        base_pins._status_of_image(BASE)


def test_a_pull_that_broke_off_names_the_base(fault: Exception) -> None:
    with pytest.raises(FetchError, match=f"could not be pulled: {fault}"):
        base_image.fetch_base_image(Console(as_json=True), BASE)


def test_an_engine_that_does_not_say_its_version_is_not_reachable(fault: Exception) -> None:
    with pytest.raises(engine.NotReachable, match=str(fault)):
        engine.engine_client()
