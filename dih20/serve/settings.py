"""The server's settings: one JSON file, read once into a frozen model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dih20.errors import ConfigError
from dih20.serve.secrets import Secret

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    """Base of the settings: frozen, and no key that is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(Part):
    """What one client may ask for, and what all of them may."""

    body_bytes: Count = 1 << 20
    max_model_len: Count | None = None  # prompt and answer; None: what the engine says
    default_max_tokens: Count = 256
    max_queue: Annotated[int, Field(ge=0)] = 256  # requests that wait for a place in a batch
    max_connections: Count = 1024
    max_tokenising: Count = 16  # long prompts that wait to be tokenised
    kept_log_probs: Count = 1 << 16  # of an answer that is not streamed: tokens times (1 + k)
    stop_strings: Count = 4
    stop_bytes: Count = 256  # of one stop string
    buffer_bytes: Count = 1 << 18  # unsent output of one stream; more cancels that request
    write_timeout_s: Seconds = 30.0  # a client that takes nothing for so long is dropped
    read_timeout_s: Seconds = 30.0  # for a request's head and body


class Deadlines(Part):
    """How long the supervisor waits, and for what."""

    no_progress_timeout_s: Seconds = 600.0  # of a start: since the last line or phase
    gate_timeout_s: Seconds = 300.0  # one known-answer run
    stall_timeout_s: Seconds = 300.0  # work pending and no engine step
    drain_timeout_s: Seconds = 30.0  # after SIGTERM, for requests that are running
    close_timeout_s: Seconds = 10.0  # for a rank asked to end, or failing, to end by itself
    failed_linger_s: Annotated[float, Field(ge=0, le=3600)] = 3.0  # HTTP goes on to say why


class Gate(Part):
    """Where the known answers come from. Without a file: the canary's, which are built in."""

    answers: Path | None = None  # questions, as configs/answers.yaml explains; JSON or YAML
    recorded: Path | None = None  # ids of an earlier run (JSON); used when it is there
    record_answers: Path | None = None  # write the ids of this run there
    first_ids: Count = 8  # ids of an answer that must be exact


class Settings(Part):
    """Everything a server is started with. engine: a built-in one, or module:factory."""

    engine: Annotated[str, Field(pattern=r"^(reference|deepinfer|[\w.]+:\w+)$")] = "reference"
    engine_options: dict[str, Any] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)  # added to that of the ranks
    model: Path | None = None  # a checkpoint's folder; None: the canary
    served_name: Annotated[str, Field(min_length=1)] = "canary"
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000  # 0: any free one; see port_file
    ranks: Annotated[int, Field(ge=1, le=64)] = 1
    port_file: Path | None = None  # {"host", "port", "pid", "instance"} once HTTP listens
    instance: str = ""  # whoever starts the server names it, to know it again; default: random
    state_dir: Path | None = None  # keeps how long the last start took
    tokens_file: Path | None = None  # bearer tokens, one a line; without it nobody is asked
    limits: Limits = Limits()
    deadlines: Deadlines = Deadlines()
    gate: Gate = Gate()
    identities: dict[str, str] = Field(default_factory=dict)  # image, patchset, wheels, engine ...

    @model_validator(mode="after")
    def _no_engram_over_several_gpus(self) -> Settings:
        """Refuse what a later version brings, before anything is read of the checkpoint."""
        if self.gate.answers is not None and (reason := self.why_not(is_canary=False)):
            raise ValueError(reason)
        return self

    def why_not(self, *, is_canary: bool) -> str | None:
        """Give why this checkpoint cannot be served by so many ranks, or None.

        The canary's Engram tables are small enough for a copy on each GPU, which is what the
        engine is told to make (engines.deepinfer_engram.SERVED_GROUP).
        """
        if self.engine != "deepinfer" or self.ranks == 1 or is_canary:
            return None
        return (
            f"a real checkpoint on {self.ranks} GPUs needs Engram over several GPUs, which "
            "the engine deepinfer does not have yet; it serves the canary, or one GPU"
        )


def load_settings(path: Path) -> Settings:
    """Read a settings file; everything wrong in it is one ConfigError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise ConfigError(
            found=f"settings file {path}: {fault.strerror}",
            expected="a readable JSON file",
            remedy="name the file that serve wrote, or write one",
        ) from fault
    except ValueError as fault:
        raise ConfigError(
            found=f"settings file {path}: not JSON in UTF-8: {fault}",
            expected="one JSON object",
            remedy="correct the file",
        ) from fault
    try:
        return Settings.model_validate(values)
    except ValidationError as fault:
        wrong = [
            f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in fault.errors()
        ]
        raise ConfigError(
            found=f"settings file {path}: " + "\n  ".join(wrong),
            expected="the keys and kinds of dih20.serve.settings.Settings",
            remedy="correct the file",
        ) from fault


def load_tokens(path: Path | None) -> list[Secret]:
    """Read bearer tokens, one a line; an unreadable or empty file never means open to all."""
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigError(
            found=f"tokens file {path}: {fault}",
            expected="a readable file, one token a line",
            remedy="correct tokens_file, or leave it out to ask nobody for a token",
        ) from fault
    if not lines:
        raise ConfigError(
            found=f"tokens file {path} is empty",
            expected="at least one token",
            remedy="add one, or leave tokens_file out to ask nobody for a token",
        )
    return [Secret(line) for line in lines]
