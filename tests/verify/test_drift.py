"""Every kind of difference between a host and what lock and tree say, one line each; no engine needed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dih20.console import Console
from dih20.deploy.container import container_spec
from dih20.errors import HostDrifted
from dih20.explain.container import Installed
from dih20.explain.here import CacheAnswer
from dih20.verify.command import judged
from dih20.verify.drift import drifts, not_compared
from dih20.verify.expected import Expected
from dih20.verify.found import Found, NcclFact
from tests.hosts.places import production_host
from tests.provenance.records import record_for

IMAGE = "sha256:" + "1" * 64
LABELS = {
    "dih20.base": "vllm",
    "dih20.lock": "l" * 64,
    "dih20.python-tag": "cp312",
    "dih20.torch": "2.13.0 git a cuda 13.0",
    "dih20.patchset": "p" * 64,
    "dih20.wheels": "w" * 64,
    "dih20.layers": "y" * 64,
}
HIT = CacheAnswer(is_hit=True)


def _attrs() -> dict[str, Any]:
    """Give what an engine says of a container that is exactly what was asked."""
    spec = container_spec(production_host(), image="di-h20:aaaa", labels=LABELS)
    config = copy.deepcopy(dict(spec.config))
    return {
        "Id": "c" * 64,
        "Image": IMAGE,
        "State": {"Status": "running"},
        "Config": config,
        "HostConfig": {**config["HostConfig"], "Privileged": False},
    }


def _found(**changes: Any) -> Found:
    labels = {"dih20.identity": "i" * 64, "dih20.wheels": "w" * 64}
    values: dict[str, Any] = {
        "attrs": _attrs(),
        "image": {"Config": {"Labels": labels}, "RootFS": {"Layers": ["sha256:a", "sha256:b", "sha256:w"]}},
        "tagged": IMAGE,
        "wheels": (Installed(name="h20-ops", version="0.1.0", record=record_for("h20_ops"), changed=()),),
        "nccl": (NcclFact(check="header", status="ok", note="2.32.3"),),
        **changes,
    }  # fmt: skip
    return Found(**values)


def _expected(**changes: Any) -> Expected:
    values: dict[str, Any] = {
        "host": production_host(),
        "lock": "l" * 64,
        "nccl": "2.32.3",
        "patchset": "p" * 64,
        "image_identity": "i" * 64,
        "layers": ("sha256:a", "sha256:b"),
        "wheels": frozenset({"h20_ops"}),
        "wheels_with_torch": frozenset({"h20_ops"}),
        "answer": lambda record: HIT,
        **changes,
    }
    return Expected(**values)


def _lines(found: Found | None, expected: Expected) -> list[str]:
    return [drift.line for drift in drifts(found, expected)]


def test_a_host_that_runs_what_is_said_has_no_difference() -> None:
    assert _lines(_found(), _expected()) == []
    result = judged(Console(as_json=True), _found(), _expected())
    assert result["drifts"] == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"lock": "m" * 64}, "lock: llllllllllll there, mmmmmmmmmmmm here"),
        ({"patchset": "q" * 64}, "patchset: pppppppppppp there, qqqqqqqqqqqq here"),
        ({"image_identity": "j" * 64}, "image: iiiiiiiiiiii there, jjjjjjjjjjjj here"),
        ({"layers": ("sha256:a", "sha256:other")}, "image layer 2: b there, other here"),
        ({"layers": ("sha256:a", "sha256:b", "sha256:w", "sha256:more")}, "image layer 4: missing there, more here"),
        ({"wheels_with_torch": frozenset({"h20_ops", "deep_ep"})}, "wheel deep_ep: not installed there, in the set here"),
        ({"host": production_host(memlock=1 << 20)}, "container Ulimits: "),
        ({"host": production_host(work_dir="/data/elsewhere")}, "container "),
        (
            {"answer": lambda record: CacheAnswer(is_hit=False, changed=("source: aaa -> bbb",))},
            "wheel h20_ops: {identity} there, source: aaa -> bbb (there -> here) here",
        ),
        (
            {"answer": lambda record: CacheAnswer(is_hit=None, why_unknown="no recipe here builds it")},
            "wheel h20_ops: {identity} there, no recipe here builds it here",
        ),
    ],
)  # fmt: skip
def test_what_changed_here_is_one_line(change: dict[str, Any], line: str) -> None:
    identity = record_for("h20_ops").identity[:12]
    (found,) = _lines(_found(), _expected(**change))
    assert found.startswith(line.format(identity=identity).replace("sha256:", ""))


def _stopped(attrs: dict[str, Any]) -> None:
    attrs["State"]["Status"] = "exited"


def _privileged(attrs: dict[str, Any]) -> None:
    attrs["HostConfig"]["Privileged"] = True


def _other_label(attrs: dict[str, Any]) -> None:
    attrs["Config"]["Labels"]["dih20.config"] = "0" * 64


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (_stopped, "container state: exited there, running here"),
        (_privileged, "container Privileged: True there, False here"),
        (_other_label, "container configuration: 000000000000 there, "),
    ],
)
def test_what_changed_on_the_container_is_one_line(
    change: Callable[[dict[str, Any]], None], line: str
) -> None:
    attrs = _attrs()
    change(attrs)
    (found,) = _lines(_found(attrs=attrs), _expected())
    assert found.startswith(line)


def test_a_name_that_moved_to_another_image_a_changed_file_and_another_nccl_are_lines() -> None:
    wheel = replace(_found().wheels[0], changed=("h20_ops/formats.py was changed",))
    nccl = (NcclFact(check="mapped library", status="wrong", note="2.28.9 (/x/libnccl.so.2)"),)
    lines = _lines(_found(tagged="sha256:" + "2" * 64, wheels=(wheel,), nccl=nccl), _expected())
    assert lines == [
        "image id: the container runs 111111111111, the name di-h20:aaaa is 222222222222 there, one image here",
        "wheel h20_ops: h20_ops/formats.py was changed there, as installed here",
        "NCCL mapped library: 2.28.9 (/x/libnccl.so.2) there, the locked one here",
    ]


def test_no_container_is_the_one_difference_and_has_its_exit_code() -> None:
    with pytest.raises(HostDrifted) as caught:
        judged(Console(as_json=True), None, _expected())
    assert caught.value.exit_code == 72
    assert "container di-h20: none there, one here" in caught.value.found
    assert caught.value.details["drifts"][0]["what"] == "container di-h20"


def test_what_was_not_compared_is_said() -> None:
    expected = _expected(unknown={"patchset": "no source"}, patchset=None)
    attrs = _attrs()
    attrs["Config"]["Labels"]["dih20.torch"] = "none"
    assert not_compared(_found(attrs=attrs), expected) == [
        "patchset: no source",
        "NCCL: no torch in this image",
    ]
    _stopped(attrs)
    assert (
        not_compared(_found(attrs=attrs), expected)[1]
        == "wheels and NCCL: the container does not run"
    )
