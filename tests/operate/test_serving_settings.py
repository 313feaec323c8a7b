"""What a server is started with: refused here when the server would refuse it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dih20.config import EngineConfig
from dih20.config.reading import read_config
from dih20.errors import ConfigError
from dih20.operate.serving import ServeConfig, host_settings, load_serving, local_settings


def settings(serving: ServeConfig, **more: Any) -> Any:
    labels = {"dih20.wheels": "w" * 64, "dih20.config": "c" * 64}
    engine = EngineConfig(expert_parallel_size=more.pop("ranks", 1))
    return host_settings(serving, engine, port=8123, instance="i", labels=labels, **more)


def test_the_committed_file_is_valid_and_its_eight_gpus_are_refused_with_the_reason() -> None:
    serving = load_serving()
    assert (serving.engine, serving.bind) == ("deepinfer", "127.0.0.1")
    with pytest.raises(ConfigError) as refused:
        settings(serving, ranks=8)
    assert "Engram over several GPUs" in refused.value.found
    assert "--canary" in refused.value.remedy


def test_a_real_model_gets_its_gate_and_the_engines_own_settings() -> None:
    made = settings(load_serving(), record=True, checkpoint="k")
    assert str(made.gate.answers) == "/opt/di/run/answers.json"
    assert str(made.gate.record_answers) == "/opt/di/run/recorded.json"
    assert made.engine_options["max_model_len"] == 16384
    assert made.identities["checkpoint"] == "k"
    assert made.identities["wheels"] == "w" * 64
    assert settings(load_serving()).gate.record_answers is None


def test_the_canary_needs_no_answers_file_on_a_host_and_here() -> None:
    canary = settings(load_serving().as_canary())
    assert (canary.engine, canary.served_name, canary.model) == ("reference", "canary", None)
    assert canary.gate.answers is None
    here = local_settings(load_serving(), port=0, instance="i", folder="/x")
    assert (here.engine, here.host, str(here.port_file)) == (
        "reference",
        "127.0.0.1",
        "/x/port.json",
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("engine: deepinfer\n", "needs model"),
        ("engine: reference\nlimits: {max_queu: 3}\n", "max_queu"),
        ("engine: reference\ndeadlines: {drain_timeout_s: 0}\n", "drain_timeout_s"),
        ("engine: vllm\nmodel: /x\n", "engine"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_key(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=named):
        read_config(path, ServeConfig)
