"""The annotated files are the manual: every key in them is known, and every known key is in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from dih20.config.ci import CiConfig
from dih20.config.engine import EngineConfig
from dih20.config.host import HostConfig
from dih20.config.image import ImageConfig
from dih20.config.mirrors import Mirrors
from dih20.config.reading import Section, read_config
from dih20.paths import REPOSITORY

EXAMPLES: list[tuple[str, type[Section]]] = [
    ("hosts/nv-h20.yaml", HostConfig),
    ("images/di-h20.yaml", ImageConfig),
    ("ci.yaml", CiConfig),
    ("engine.yaml", EngineConfig),
    ("mirrors.yaml", Mirrors),
]
ALTERNATIVES = ("git", "commit", "path")  # of a source's sdist: documented, and refused beside it


def uncommented(text: str) -> str:
    """Give the file with its switched-off keys (#key: value) switched on; prose comments start with "# "."""
    return re.sub(r"^(\s*)#(?=[A-Za-z_])", r"\1", text, flags=re.M)


def documented(values: Any, model: type[BaseModel]) -> Iterator[tuple[type[BaseModel], str]]:
    """Give (model, key) for every key of a mapping that a model reads."""
    for key, value in values.items():
        field = next((f for n, f in model.model_fields.items() if key in (n, f.alias)), None)
        yield model, key
        inner = list(models_in(field.annotation)) if field else []
        for nested in (value if isinstance(value, list) else [value]) if inner else []:
            for each in nested.values() if is_mapping_of_models(field) else [nested]:
                if isinstance(each, dict):
                    yield from documented(each, inner[0])


def is_mapping_of_models(field: Any) -> bool:
    return getattr(field.annotation, "__origin__", None) is dict


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def all_models(model: type[BaseModel]) -> set[type[BaseModel]]:
    found = {model}
    for field in model.model_fields.values():
        for inner in models_in(field.annotation):
            found |= all_models(inner)
    return found


@pytest.mark.parametrize(("name", "model"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
class TestExample:
    def test_it_is_accepted_as_it_is(self, name: str, model: type[Section]) -> None:
        read_config(REPOSITORY / "configs" / name, model)

    def test_it_is_accepted_with_every_switched_off_key_switched_on(
        self, name: str, model: type[Section], tmp_path: Path
    ) -> None:
        text = (REPOSITORY / "configs" / name).read_text()
        lines = uncommented(text).splitlines()
        kept = [
            line
            for line in lines
            if not line.strip().startswith(tuple(f"{key}:" for key in ALTERNATIVES))
        ]
        assert model is not ImageConfig or len(lines) - len(kept) == len(ALTERNATIVES)
        path = tmp_path / "example.yaml"
        path.write_text("\n".join(kept))
        read_config(path, model)

    def test_every_key_in_it_is_known_and_every_known_key_is_in_it(
        self, name: str, model: type[Section]
    ) -> None:
        text = (REPOSITORY / "configs" / name).read_text()
        values = yaml.safe_load(uncommented(text))
        seen = set(documented(values, model))
        known = {(m, f.alias or n) for m in all_models(model) for n, f in m.model_fields.items()}
        assert {(m.__name__, k) for m, k in seen - known} == set()
        assert {(m.__name__, k) for m, k in known - seen} == set()

    def test_every_key_is_explained_by_a_comment_above_it_or_above_its_group(
        self, name: str, model: type[Section]
    ) -> None:
        lines = (REPOSITORY / "configs" / name).read_text().splitlines()
        bare = []
        for number, line in enumerate(lines):
            if not re.match(r"^#?[a-z_]+:", line):
                continue
            above = lines[number - 1] if number else ""
            if not above.startswith("#") and not (
                above.strip() and number and re.match(r"^#?[a-z_]+:", above)
            ):
                bare.append(line)
        groups = ("bases:", "wheels:", "log:", "pip:")  # their own keys are explained inside
        assert [line for line in bare if not line.startswith(groups)] == []


def test_a_key_that_the_model_lost_would_be_noticed() -> None:
    values = yaml.safe_load((REPOSITORY / "configs/hosts/nv-h20.yaml").read_text())
    values["gpu_count"] = 8
    known = {(HostConfig, name) for name in HostConfig.model_fields}
    assert (HostConfig, "gpu_count") in set(documented(values, HostConfig)) - known


def test_a_key_that_an_example_lost_would_be_noticed() -> None:
    text = (
        (REPOSITORY / "configs/hosts/nv-h20.yaml").read_text().replace("    read_only: false\n", "")
    )
    seen = set(documented(yaml.safe_load(uncommented(text)), HostConfig))
    known = {(m, name) for m in all_models(HostConfig) for name in m.model_fields}
    assert [(m.__name__, name) for m, name in known - seen] == [("Mount", "read_only")]


def test_no_example_names_a_registry_or_public_index() -> None:
    for name, _ in EXAMPLES:
        text = (REPOSITORY / "configs" / name).read_text()
        addresses = re.findall(r"https?://([^/\s\]]+)", text)
        assert all(a.split(":")[0].endswith("example.internal") for a in addresses), name
