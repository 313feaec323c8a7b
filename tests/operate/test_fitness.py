"""F53, F54: what is looked at before a start, judged from what the container says."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

from dih20.deploy.container import container_spec
from dih20.operate.fitness import TOOLS, creation_findings, tool_findings
from tests.hosts.places import production_host

CACHE = "/data/di-h20/jit-cache"
ALL = f"nvcc=/usr/local/cuda/bin/nvcc\ncuobjdump=/usr/bin/cuobjdump\nc++=/usr/bin/g++\ncache={CACHE}\n"


def failed(said: str, cache: str = CACHE) -> list[str]:
    return [f.found for f in tool_findings(said, cache, production_host()) if f.status == "fail"]


def test_a_container_with_all_tools_and_a_kept_cache_is_fit() -> None:
    assert failed(ALL) == []


@pytest.mark.parametrize("tool", ["nvcc", "cuobjdump", "c++"])
def test_each_missing_tool_is_a_finding_of_its_own_that_says_what_to_install(tool: str) -> None:
    said = "".join(f"{line}\n" for line in ALL.splitlines() if not line.startswith(f"{tool}="))
    (found,) = failed(said)
    assert f"no {tool} in the container" in found
    finding = next(f for f in tool_findings(said, CACHE, production_host()) if f.status == "fail")
    assert "deploy" in finding.remedy


def test_a_cache_that_cannot_be_written_or_ends_with_the_container_is_a_finding() -> None:
    read_only = ALL.replace(f"cache={CACHE}\n", "")
    assert failed(read_only) == [f"the folder of compiled kernels, {CACHE}, cannot be written to"]
    assert "ends with it" in failed(ALL.replace(CACHE, "/tmp/jit"), "/tmp/jit")[0]
    assert "is not set" in failed(ALL, "")[0]


def made(**host_config: Any) -> Any:
    """Give a container as the engine describes it."""
    asked = container_spec(production_host(), image="x", labels={}).config["HostConfig"]
    mounts = [{"Destination": m["Target"]} for m in asked["Mounts"]]
    settings = {**copy.deepcopy(asked), **host_config}
    return SimpleNamespace(attrs={"HostConfig": settings, "Mounts": mounts})


def creation(container: Any) -> list[tuple[str, str]]:
    found = creation_findings(container, production_host())
    return [(f.found, f.remedy) for f in found if f.status == "fail"]


def test_a_container_as_deploy_makes_it_passes() -> None:
    assert creation(made()) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"Init": None}, "no init process"),
        ({"LogConfig": {"Type": "json-file", "Config": {}}}, "no limit"),
        ({"LogConfig": {"Type": "json-file", "Config": {"max-size": "1g"}}}, "1g"),
        ({"LogConfig": {"Type": "none", "Config": {}}}, "log is none"),
    ],
)
def test_what_is_fixed_at_creation_needs_a_re_create_and_says_so(
    change: dict[str, Any], named: str
) -> None:
    ((found, remedy),) = creation(made(**change))
    assert named in found
    assert "needs re-create" in remedy
    assert "--replace" in remedy


def test_going_back_takes_an_older_container_with_its_own_limits_but_none_without() -> None:
    older = made(LogConfig={"Type": "json-file", "Config": {"max-size": "1g", "max-file": "2"}})
    found = list(creation_findings(older, production_host(), going_back=True))
    assert [f.status for f in found] == ["warn", "ok"]
    without = made(LogConfig={"Type": "json-file", "Config": {}})
    found = list(creation_findings(without, production_host(), going_back=True))
    assert [f.status for f in found] == ["fail", "ok"]


def test_a_container_of_an_older_version_has_no_folder_of_its_own() -> None:
    container = made()
    container.attrs["Mounts"] = []
    ((found, remedy),) = creation(container)
    assert "/opt/di/run" in found
    assert "needs re-create" in remedy


@pytest.mark.docker
def test_the_tools_of_a_real_image_are_found_and_a_read_only_cache_is_not_writable(
    engine: Any, standin_image: str
) -> None:
    out = engine.containers.run(
        standin_image,
        entrypoint=["/bin/sh", "-c", TOOLS, "sh"],
        command=["/nowhere/cache"],
        network_mode="none",
        read_only=True,
        remove=True,
    ).decode()
    said = dict(line.split("=", 1) for line in out.splitlines())
    assert said == {"c++": "/usr/bin/c++"}  # the stand-in has g++ and no CUDA
    found = failed(out, "/nowhere/cache")
    assert len(found) == 4
    assert any("nvcc" in text for text in found)
    assert any("cannot be written to" in text for text in found)


def test_doctor_gives_the_same_findings_of_a_container_that_runs() -> None:
    from dih20.config import load_engine
    from dih20.doctor.registry import Subject
    from dih20.hosts.docker_cli import docker_environment
    from dih20.operate.checks import container_can_serve
    from tests.hosts.recorded import DOCKER, recorded_host

    host = production_host()
    assert docker_environment(host) == {}
    cache = load_engine().environment["DEEPINFER_JIT_CACHE_DIR"]
    argv = [DOCKER, "exec", host.container, "/bin/sh", "-c", TOOLS, "sh", cache]
    runner = recorded_host(host, {})
    runner.expect(argv, stdout=ALL.replace("nvcc=/usr/local/cuda/bin/nvcc\n", ""))
    found = list(container_can_serve(Subject(runner=runner, host=host)))
    assert [f.found for f in found if f.status == "fail"] == [
        "no nvcc in the container; kernels are compiled at the first request"
    ]
    runner.expect(argv, exit_code=1, stderr="Error response from daemon: No such container")
    assert [f.status for f in container_can_serve(Subject(runner=runner, host=host))] == ["not run"]
