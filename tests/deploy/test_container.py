"""What the container is created with, and the read-back that tells when it was not."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from dih20.deploy.container import Gpus, container_spec
from dih20.deploy.readback import (
    inspect_shortfalls,
    limit_shortfalls,
    mount_shortfalls,
    require_none,
    shm_shortfalls,
)
from dih20.errors import DeployError, UsageError, WheelError
from tests.deploy.stand import wanted_for, wheel_of
from tests.hosts.places import production_host

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max stack size            67108864             67108864             bytes
Max locked memory         {0}            {0}            bytes
"""


def production() -> dict[str, Any]:
    return dict(container_spec(production_host(), image="di-h20:x", labels={}).config)


def as_inspected(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "HostConfig": copy.deepcopy(config["HostConfig"]),
        "Config": {"Entrypoint": list(config["Entrypoint"])},
    }


def test_the_production_container_has_what_the_port_needs() -> None:
    asked = production()["HostConfig"]
    assert asked["DeviceRequests"] == [
        {"Driver": "", "Capabilities": [["gpu"]], "Options": {}, "Count": -1, "DeviceIDs": []}
    ]
    assert (asked["IpcMode"], asked["NetworkMode"], asked["Init"]) == ("host", "host", True)
    assert asked["Ulimits"] == [
        {"Name": "memlock", "Soft": -1, "Hard": -1},
        {"Name": "stack", "Soft": 67108864, "Hard": 67108864},
    ]
    assert asked["RestartPolicy"] == {"Name": "no"}
    assert asked["Privileged"] is False
    assert asked["LogConfig"]["Config"] == {"max-size": "100m", "max-file": "5"}
    assert [m["Target"] for m in asked["Mounts"]] == ["/data", "/mnt/data", "/opt/di/run"]
    assert re.fullmatch(r"/data/di-h20/run/[0-9a-f]{12}", asked["Mounts"][-1]["Source"])
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7" in production()["Env"]


def test_a_host_without_gpus_asks_for_none() -> None:
    config = container_spec(production_host(gpus=0), image="x", labels={}).config
    assert config["HostConfig"]["DeviceRequests"] == []
    assert config["Env"] == []


def test_gpus_by_count_and_by_id_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match="by count"):
        Gpus(count=-1, ids=("0",))
    assert Gpus(ids=("GPU-1",)).requests()[0]["Count"] == 0


def test_labels_say_owner_host_and_configuration() -> None:
    labels = wanted_for().container.config["Labels"]
    assert (labels["dih20.owner"], labels["dih20.host"]) == ("dih20", "nv-h20")
    assert {"dih20.config", "dih20.wheels", "dih20.lock", "dih20.patchset"} <= set(labels)


def test_a_container_as_asked_has_no_shortfall() -> None:
    assert inspect_shortfalls(production(), as_inspected(production())) == []


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("Privileged", True, "Privileged"),
        ("IpcMode", "private", "IpcMode"),
        ("NetworkMode", "bridge", "NetworkMode"),
        ("Init", None, "Init"),
        ("Ulimits", [{"Name": "memlock", "Soft": 65536, "Hard": 65536}], "Ulimits"),
        ("DeviceRequests", None, "DeviceRequests"),
        ("RestartPolicy", {"Name": "always"}, "RestartPolicy"),
        ("LogConfig", {"Type": "json-file", "Config": {}}, "LogConfig"),
        ("Mounts", [], "Mounts"),
    ],
)
def test_each_setting_that_differs_is_named(key: str, value: Any, named: str) -> None:
    made = as_inspected(production())
    made["HostConfig"][key] = value
    assert [s.what for s in inspect_shortfalls(production(), made)] == [named]


def test_a_limit_below_the_asked_one_is_given_with_both_values() -> None:
    assert limit_shortfalls(LIMITS.format("unlimited"), memlock=-1, stack=67108864) == []
    assert limit_shortfalls(LIMITS.format("9000000"), memlock=8388608, stack=67108864) == []
    (short,) = limit_shortfalls(LIMITS.format("8388608"), memlock=-1, stack=67108864)
    assert (short.what, short.actual, short.required) == (
        "ulimit memlock",
        "8388608/8388608",
        "unlimited",
    )
    assert len(limit_shortfalls("", memlock=-1, stack=1)) == 2


def test_a_small_dev_shm_is_given_with_both_values() -> None:
    df = (
        "Filesystem 1024-blocks Used Available Capacity Mounted on\nshm 65536 0 65536 0% /dev/shm\n"
    )
    (short,) = shm_shortfalls(df, 1 << 30)
    assert (short.actual, short.required) == ("64 MiB", "1024 MiB")
    assert shm_shortfalls(df, 64 << 20) == []
    with pytest.raises(DeployError, match="/dev/shm is 64 MiB"):
        require_none([short], "nv-h20")


def test_a_mount_that_is_missing_or_writable_is_named() -> None:
    info = (
        "36 35 8:1 / / rw - ext4 /dev/sda rw\n37 36 8:1 /d /data rw,relatime - ext4 /dev/sda rw\n"
    )
    assert mount_shortfalls(info, {"/data": False}) == []
    found = mount_shortfalls(info, {"/data": True, "/mnt/data": False})
    assert [(s.what, s.actual) for s in found] == [
        ("mount /data", "read-write"),
        ("mount /mnt/data", "not mounted"),
    ]


def test_wheels_of_another_python_or_torch_are_refused(tmp_path: Any) -> None:
    from pathlib import Path

    from dih20.deploy.wanted import require_fitting

    image = wanted_for().image
    good = wheel_of(Path("a-1-cp313-cp313-linux_x86_64.whl"), tags=("cp313-cp313-linux_x86_64",))
    stable = wheel_of(Path("b-1-cp311-abi3-linux_x86_64.whl"), tags=("cp311-abi3-linux_x86_64",))
    require_fitting(image, (good, stable))
    other = wheel_of(Path("c-1-cp312-cp312-linux_x86_64.whl"), tags=("cp312-cp312-linux_x86_64",))
    with pytest.raises(WheelError, match="is for cp312"):
        require_fitting(image, (good, other))
    built = wheel_of(Path("d-1-py3-none-any.whl"), torch="2.13.0+cu130")
    with pytest.raises(WheelError, match=r"against torch 2\.13\.0\+cu130"):
        require_fitting(image, (built,))


@pytest.mark.docker
def test_the_production_flags_stand_on_a_created_container(engine: Any, standin_image: str) -> None:
    """Created and looked at, not started: this machine has neither GPUs nor the right to lock memory."""
    config = dict(container_spec(production_host(), image=standin_image, labels={}).config)
    config["HostConfig"] = {**config["HostConfig"], "Mounts": []}
    made = engine.api.create_container_from_config(config, "production-flags")["Id"]
    try:
        attributes = engine.api.inspect_container(made)
        assert inspect_shortfalls(config, attributes) == []
        assert attributes["State"]["Status"] == "created"
        assert attributes["HostConfig"]["DeviceRequests"][0]["Count"] == -1
    finally:
        engine.api.remove_container(made)


@pytest.mark.docker
def test_a_gpu_request_on_an_engine_without_the_toolkit_is_an_error_that_names_it(
    engine: Any, standin_image: str
) -> None:
    from dih20.deploy.swap import start

    config = {
        "Image": standin_image,
        "Cmd": ["true"],
        "HostConfig": {"NetworkMode": "none", "DeviceRequests": Gpus(count=-1).requests()},
    }
    made = engine.containers.get(engine.api.create_container_from_config(config)["Id"])
    try:
        with pytest.raises(DeployError) as failed:
            start(made)
    finally:
        made.remove(force=True)
    assert "could not select device driver" in failed.value.found
    assert "NVIDIA container toolkit" in failed.value.remedy
