"""What a server is started with: configs/serve.yaml and configs/engine.yaml as the server's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from dih20.config.host import AbsolutePath
from dih20.config.reading import Section, read_config
from dih20.deploy.container import RUN_FOLDER
from dih20.errors import ConfigError
from dih20.paths import configs_dir
from dih20.serve.settings import Deadlines, Limits, Settings

if TYPE_CHECKING:
    from dih20.config import EngineConfig

# Files of the known-answer gate, in the container's own folder: questions, ids recorded before, ids of this run.
ANSWERS, KNOWN_IDS, RECORDED = "answers.json", "known-ids.json", "recorded.json"
_LABELS = ("identity", "lock", "patchset", "wheels", "config", "base")


class ServeConfig(Section):
    """What is served on a host. configs/serve.yaml is the manual of these keys."""

    engine: Literal["deepinfer", "reference"] = "deepinfer"
    model: AbsolutePath | None = None
    served_name: Annotated[str, Field(min_length=1)] = "canary"
    bind: str = "127.0.0.1"
    tokens_file: AbsolutePath | None = None
    limits: Limits = Limits()
    deadlines: Deadlines = Deadlines()

    @model_validator(mode="after")
    def _engine_has_a_model(self) -> ServeConfig:
        if self.engine == "deepinfer" and self.model is None:
            raise ValueError("engine deepinfer needs model: a checkpoint's folder in the container")
        return self

    def as_canary(self) -> ServeConfig:
        """Give the same limits around the canary: what any machine can serve."""
        change = {"engine": "reference", "model": None, "served_name": "canary"}
        return self.model_copy(update=change)


def load_serving() -> ServeConfig:
    """Give configs/serve.yaml."""
    return read_config(configs_dir() / "serve.yaml", ServeConfig)


def host_settings(
    serving: ServeConfig,
    engine: EngineConfig,
    *,
    port: int,
    instance: str,
    labels: Mapping[str, str],
    checkpoint: str = "",
    record: bool = False,
) -> Settings:
    """Give the settings of a server in a container; its paths are the container's own.

    Args:
        checkpoint: what says which checkpoint it is: recorded ids count for that one only.
        record: let the gate write the ids of its answers.
    """
    values: dict[str, Any] = {
        **serving.model_dump(exclude={"bind"}),
        "host": serving.bind,
        "port": port,
        "instance": instance,
        "port_file": f"{RUN_FOLDER}/port.json",
        "state_dir": f"{RUN_FOLDER}/state",
        "identities": {key: labels.get(f"dih20.{key}", "") for key in _LABELS},
    }
    if serving.engine == "deepinfer":
        values["engine_options"] = engine.model_dump(exclude={"environment"})
        values["environment"] = dict(engine.environment)
        values["ranks"] = engine.expert_parallel_size
    values["identities"]["checkpoint"] = checkpoint
    if serving.model is not None:
        values["gate"] = {
            "answers": f"{RUN_FOLDER}/{ANSWERS}",
            "recorded": f"{RUN_FOLDER}/{KNOWN_IDS}",
            "record_answers": f"{RUN_FOLDER}/{RECORDED}" if record else None,
        }
    return checked(values)


def local_settings(serving: ServeConfig, *, port: int, instance: str, folder: str) -> Settings:
    """Give the settings of a server on this machine: the canary, by the reference model on CPU."""
    canary = serving.as_canary().model_dump(exclude={"bind", "tokens_file"})
    return checked(
        {
            **canary,
            "port": port,
            "instance": instance,
            "port_file": f"{folder}/port.json",
            "state_dir": f"{folder}/state",
        }
    )


def checked(values: Mapping[str, Any]) -> Settings:
    """Give settings that the server will accept, or say here what it would refuse."""
    try:
        return Settings.model_validate(values)
    except ValidationError as fault:
        lines = [f"{'.'.join(map(str, e['loc'])) or 'serve'}: {e['msg']}" for e in fault.errors()]
        raise ConfigError(
            found="the server would refuse its settings: " + "; ".join(lines),
            expected="values of configs/serve.yaml and configs/engine.yaml that go together",
            remedy="correct them; `./inv serve --host NAME --canary` serves the canary meanwhile",
        ) from fault
