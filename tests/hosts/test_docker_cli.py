"""Where docker is found over SSH, where PATH is not what a login sees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dih20.errors import HostError
from dih20.hosts.docker_cli import FIND_DOCKER, docker_environment, docker_path, parse_search
from dih20.hosts.runner import LocalRunner
from dih20.hosts.ssh import connect
from dih20.rehearse.sshd import PrivateSshd
from tests.hosts.places import host_for, production_host


@pytest.fixture
def login_profile(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """An environment whose login profile alone knows where docker is."""
    hidden = tmp_path / "only-for-logins"
    hidden.mkdir()
    docker = hidden / "docker"
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    (tmp_path / ".profile").write_text(f'echo a banner\nPATH="{hidden}:$PATH"\nexport PATH\n')
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "tail"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    return {"HOME": str(tmp_path), "SHELL": "/bin/sh", "PATH": str(tools)}, docker


def test_docker_that_only_the_login_profile_knows_is_found_by_its_absolute_path(
    login_profile: tuple[dict[str, str], Path],
) -> None:
    env, docker = login_profile
    search = parse_search(LocalRunner().run(FIND_DOCKER, env=env).text)
    assert search.path == str(docker)


def test_without_docker_the_folders_searched_are_named(
    login_profile: tuple[dict[str, str], Path],
) -> None:
    env, docker = login_profile
    docker.unlink()
    search = parse_search(LocalRunner().run(FIND_DOCKER, env=env).text)
    if not search.path.startswith(("/usr/", "/snap/", "/opt/")):  # this machine has its own
        assert search.path == ""
    assert {str(docker.parent), env["PATH"], "/usr/bin", "/snap/bin"} <= set(search.searched)


@pytest.mark.ssh
def test_a_configured_docker_is_taken_as_it_is_and_an_absent_one_is_named(
    sshd: PrivateSshd,
) -> None:
    with connect(host_for(sshd, docker="/opt/own/docker")) as host:
        assert docker_path(host) == "/opt/own/docker"


def test_nothing_found_says_which_path_was_searched() -> None:
    from dih20.hosts.docker_cli import no_docker

    error = no_docker("nv-h20", parse_search("\n/usr/bin:/bin\n/home/ops/bin\n"))
    assert isinstance(error, HostError)
    assert "/usr/bin:/bin:/home/ops/bin" in error.found


def test_the_engine_of_a_host_is_named_to_each_docker_command() -> None:
    host = production_host(docker_socket="/run/other.sock")
    assert docker_environment(host) == {"DOCKER_HOST": "unix:///run/other.sock"}
    assert docker_environment(production_host()) == {}
    assert os.environ.get("DOCKER_HOST", "") != "unix:///run/other.sock"
