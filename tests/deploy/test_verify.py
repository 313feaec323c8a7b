"""A real host, deployed to through a real sshd: verify finds nothing, then each thing that drifts; explain reads it too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dih20.config import HostConfig
from dih20.console import Console
from dih20.deploy.apply import deploy
from dih20.deploy.wanted import Wanted, WantedImage
from dih20.errors import HostDrifted, UsageError
from dih20.explain.command import explain
from dih20.explain.here import CacheAnswer
from dih20.hosts.ssh import connect
from dih20.verify.command import judged, verify
from dih20.verify.drift import drifts
from dih20.verify.expected import Expected
from dih20.verify.found import Found, look
from tests.deploy.stand import LABELS, TAG, make_tree, wanted_for, wheel_of
from tests.provenance.records import record_for, wheel_with

pytestmark = [pytest.mark.docker, pytest.mark.ssh]
BODY = 'VERSION = "1.0"\n'


@pytest.fixture
def wish(make_host: Callable[..., HostConfig], image: WantedImage, tmp_path: Path) -> Wanted:
    wheel = wheel_of(wheel_with(record_for("h20_ops"), tmp_path, body=BODY), name="h20-ops", imports=("h20_ops",))  # fmt: skip
    told = ("dih20.base", "dih20.lock", "dih20.python-tag", "dih20.torch")
    labels = {**{key: LABELS[key] for key in told}, "dih20.patchset": "p" * 64}
    tree = make_tree(tmp_path / "tree")
    return wanted_for(make_host(), image=image, wheels=(wheel,), tree=tree, labels=labels)


@pytest.fixture
def configs(wish: Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration folder with the host in it, beside the committed files."""
    import shutil

    from dih20.paths import REPOSITORY

    folder = tmp_path / "configs"
    shutil.copytree(REPOSITORY / "configs", folder)
    image = folder / "images" / "di-h20.yaml"
    image.write_text(image.read_text().replace("\nbase: vllm", "\nbase: stand-in"))
    plain = wish.host.model_dump(mode="json", exclude_defaults=True)
    (folder / "hosts" / "loopback.yaml").write_text(yaml.safe_dump(plain))
    monkeypatch.setenv("DI_CONFIGS", str(folder))
    return folder


def _expected(wish: Wanted, **changes: Any) -> Expected:
    values: dict[str, Any] = {
        "host": wish.host,
        "lock": wish.labels["dih20.lock"],
        "nccl": wish.nccl,
        "patchset": wish.labels["dih20.patchset"],
        "image_identity": None,
        "layers": wish.image.layers.diff_ids,
        "wheels": frozenset({"h20_ops"}),
        "answer": lambda record: CacheAnswer(is_hit=True),
        **changes,
    }
    return Expected(**values)


@contextmanager
def _looked(wish: Wanted) -> Iterator[Found]:
    with connect(wish.host) as runner:
        found = look(runner.docker(), wish.host.container, wish.nccl)
        assert found is not None
        yield found


def _lines(wish: Wanted, **changes: Any) -> list[str]:
    with _looked(wish) as found:
        return [drift.line for drift in drifts(found, _expected(wish, **changes))]


def test_a_fresh_deploy_differs_in_nothing_and_every_drift_is_named(
    wish: Wanted, engine: Any, clean_host: Any, ui: Console
) -> None:
    deploy(ui, engine, wish)
    container = clean_host.containers.get(wish.host.container)
    with _looked(wish) as found:
        assert judged(ui, found, _expected(wish))["drifts"] == []
        assert [wheel.record for wheel in found.wheels] == [record_for("h20_ops")]

    assert _lines(wish, lock="m" * 64) == [f"lock: {'l' * 12} there, {'m' * 12} here"]
    (line,) = _lines(wish, host=wish.host.model_copy(update={"memlock": 1 << 19}))
    assert line.startswith("container Ulimits: ")

    find = "import h20_ops; print(h20_ops.__file__)"
    place = container.exec_run(["python3", "-c", find]).output.decode().strip()
    container.exec_run(["sh", "-c", f"echo 'VERSION = 2' >{place}"])
    assert _lines(wish) == ["wheel h20_ops: h20_ops/__init__.py was changed there, as installed here"]  # fmt: skip
    container.exec_run(["rm", place])
    assert _lines(wish) == ["wheel h20_ops: h20_ops/__init__.py is gone there, as installed here"]

    other = clean_host.images.get(wish.image.tag)
    repository, _, tag = wish.runtime_tag.partition(":")
    other.tag(repository, tag)
    assert any(line.startswith("image id: the container runs ") for line in _lines(wish))

    container.stop(timeout=1)
    lines = _lines(wish)
    assert "container state: exited there, running here" in lines
    assert not any(line.startswith("wheel ") for line in lines), "not read, and said so elsewhere"
    container.remove()


def test_verify_and_explain_reach_a_host_by_its_name(
    wish: Wanted,
    engine: Any,
    clean_host: Any,
    configs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ui, name = Console(), "loopback"
    assert configs.is_dir()
    with pytest.raises(HostDrifted, match="container di-h20: none there, one here"):
        verify(ui, name)
    deploy(ui, engine, wish)
    with pytest.raises(HostDrifted) as caught:
        verify(ui, name)
    found = {drift["what"] for drift in caught.value.details["drifts"]}
    assert {"lock", "patchset", "image"} <= found
    assert "container state" not in found

    told = explain(ui, wish.host.container, host=name)
    assert told["kind"] == "container"
    (wheel,) = told["wheels"]
    assert wheel["record"]["identity"] == record_for("h20_ops").identity
    out = capsys.readouterr().out
    assert "lock         " + "l" * 64 in out
    assert f"wheel        {wheel['name']} 1.0, identity {wheel['record']['identity'][:12]}" in out
    image = explain(ui, TAG, host=name)
    assert (image["kind"], image["labels"]["dih20.base"]) == ("image", "stand-in")
    assert image["cache"]["hit"] is not True
    with pytest.raises(UsageError, match="no container and no image"):
        explain(ui, "not-there", host=name)
