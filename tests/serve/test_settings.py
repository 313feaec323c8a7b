"""What a server is started with: checked whole, refused by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dih20.errors import ConfigError
from dih20.serve.secrets import Secret
from dih20.serve.service import Service
from dih20.serve.settings import load_settings, load_tokens


def written(folder: Path, values: Any) -> Path:
    (folder / "settings.json").write_text(json.dumps(values))
    return folder / "settings.json"


def test_an_empty_file_serves_the_canary_to_this_machine_only(tmp_path: Path) -> None:
    settings = load_settings(written(tmp_path, {}))
    assert (settings.engine, settings.served_name, settings.host) == (
        "reference",
        "canary",
        "127.0.0.1",
    )


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"prot": 1}, "prot"),
        ({"port": 70000}, "port"),
        ({"limits": {"body_byte": 1}}, "limits.body_byte"),
        ({"deadlines": {"drain_timeout_s": -1}}, "deadlines.drain_timeout_s"),
        ([1], "settings"),
        ({"engine": "vllm"}, "engine"),
        (
            {"engine": "deepinfer", "ranks": 8, "model": "/m", "gate": {"answers": "/a.json"}},
            "needs Engram over several GPUs",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_key(tmp_path: Path, values: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_settings(written(tmp_path, values))


def test_a_real_checkpoint_without_answers_is_no_canary(tmp_path: Path) -> None:
    names = {f"t{number}": number for number in range(2000)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": names, "merges": []},
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    values = {"engine": "deepinfer", "ranks": 8, "model": str(tmp_path)}
    with pytest.raises(ConfigError, match="Engram over several GPUs"):
        Service(load_settings(written(tmp_path, values)))


def test_the_canary_may_be_served_on_several_gpus(tmp_path: Path) -> None:
    assert load_settings(written(tmp_path, {"engine": "deepinfer", "ranks": 2})).ranks == 2


def test_a_file_that_is_missing_or_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_settings(tmp_path / "none.json")
    (tmp_path / "half.json").write_bytes(b'{"port": \xff')
    with pytest.raises(ConfigError, match="not JSON"):
        load_settings(tmp_path / "half.json")


def test_tokens_are_read_one_a_line_and_never_printed(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("first-token\nsecond-token\n")
    tokens = load_tokens(tmp_path / "tokens")
    assert [token.matches(b"second-token") for token in tokens] == [False, True]
    assert "token" not in f"{tokens} {tokens[0]} {tokens[0]!r}"


@pytest.mark.parametrize("content", ["", " \n\n"])
def test_an_empty_tokens_file_never_means_open_to_all(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokens").write_text(content)
    with pytest.raises(ConfigError, match="is empty"):
        load_tokens(tmp_path / "tokens")


def test_a_missing_tokens_file_never_means_open_to_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        load_tokens(tmp_path / "none")


def test_a_token_of_any_bytes_is_only_wrong() -> None:
    assert not Secret("abc").matches(b"\xff\xfe")
