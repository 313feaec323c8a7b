"""People type nv-h20 because their ssh does: what ~/.ssh/config adds to a host's own file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dih20.config import HostConfig
from dih20.errors import ConfigError
from dih20.hosts.ssh_target import resolve

CONFIG = """
Host nv-h20
    HostName 192.0.2.17
    Port 2222
    User ops
    IdentityFile {key}
    ProxyJump gate
Host gate
    HostName 192.0.2.1
    User jumper
Host behind-a-command
    ProxyCommand nc %h %p
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    key = tmp_path / "id"
    key.write_text("")
    path = tmp_path / "config"
    path.write_text(CONFIG.format(key=key))
    return path


def host(**more: object) -> HostConfig:
    return HostConfig.model_validate(
        {"name": "nv-h20", "address": "nv-h20", "gpus": 8, "work_dir": "/data/di", **more}
    )


def test_an_alias_gets_address_port_user_key_and_jump_host(config_file: Path) -> None:
    target = resolve(host(), config_file)
    assert (target.address, target.port, target.user) == ("192.0.2.17", 2222, "ops")
    assert target.identity_file == config_file.with_name("id")
    assert target.place == "[192.0.2.17]:2222"
    assert target.jump is not None
    assert (target.jump.address, target.jump.user, target.jump.port) == ("192.0.2.1", "jumper", 22)


def test_what_the_host_file_says_wins(config_file: Path) -> None:
    target = resolve(host(port=22, user="root", identity_file="/keys/mine"), config_file)
    assert (target.port, target.user, target.identity_file) == (22, "root", Path("/keys/mine"))


def test_without_a_config_file_the_address_is_taken_as_it_is(tmp_path: Path) -> None:
    target = resolve(host(address="192.0.2.9"), tmp_path / "none")
    assert (target.address, target.port, target.jump) == ("192.0.2.9", 22, None)


def test_a_proxy_command_is_refused_and_not_ignored(config_file: Path) -> None:
    with pytest.raises(ConfigError, match="ProxyCommand"):
        resolve(host(address="behind-a-command"), config_file)
