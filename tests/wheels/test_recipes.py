from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from dih20.config.reading import read_config
from dih20.errors import ConfigError, UsageError
from dih20.image.headers import TABLE, HeaderTable
from dih20.wheels.recipes import DeviceCodePromise, Recipe, fill_in, load_all, recipes_dir, select

GOOD = (recipes_dir() / "deep_ep.yaml").read_text()


def _written(folder: Path, text: str, name: str = "deep_ep") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def test_every_recipe_of_the_repository_is_valid_and_named_after_its_file() -> None:
    names = {recipe.name for recipe in load_all()}
    assert {
        "deep_gemm",
        "deep_ep",
        "deepinfer",
        "h20_ops",
        "h20_probe",
        "flash_mla",
        "deep_select",
    } <= names


def test_an_unknown_key_is_an_error_with_file_line_and_key(tmp_path: Path) -> None:
    path = _written(tmp_path, GOOD.replace("  torch: true", "  troch: true"))
    with pytest.raises(ConfigError) as caught:
        read_config(path, Recipe)
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "troch" in text)
    assert f"deep_ep.yaml:{line}" in caught.value.found
    assert "build.troch" in caught.value.found
    assert "torch" in caught.value.found


def test_a_file_must_be_named_after_its_recipe(tmp_path: Path) -> None:
    _written(tmp_path, GOOD, name="other")
    with pytest.raises(UsageError, match="other"):
        load_all(tmp_path)


def test_architectures_belong_to_ahead_of_time_code_and_only_there() -> None:
    with pytest.raises(ValidationError, match="architectures"):
        DeviceCodePromise(kind="aot")
    with pytest.raises(ValidationError, match="architectures"):
        DeviceCodePromise(kind="jit", architectures=("sm_90a",))


@pytest.mark.parametrize("removed", ["drop_in:", "reason:"])
def test_a_drop_in_policy_without_its_parts_is_refused(tmp_path: Path, removed: str) -> None:
    text = (recipes_dir() / "flash_mla.yaml").read_text()
    kept = "\n".join(line for line in text.splitlines() if not line.startswith(removed))
    with pytest.raises(ConfigError, match="drop_in and reason"):
        read_config(_written(tmp_path, kept, "flash_mla"), Recipe)


def test_flash_mla_is_replaced_and_deep_select_is_asked_for_hopper() -> None:
    by_name = {recipe.name: recipe for recipe in load_all()}
    assert by_name["flash_mla"].policy == "drop-in"
    real = by_name["deep_select"]
    assert real.policy == "real-or-drop-in"
    assert real.build.environment["DEEP_SELECT_CUDA_ARCHS"] == "90a"
    assert real.device_code.architectures == ("sm_90a",)


def test_headers_of_recipes_are_known_with_their_packages() -> None:
    table = read_config(TABLE, HeaderTable)
    asked = {header for recipe in load_all() for header in recipe.build.headers}
    assert asked <= set(table.required)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        select(load_all(), "deep_gem")
    assert "deep_gemm" in caught.value.expected


def test_places_are_filled_in_and_unknown_ones_stay() -> None:
    assert fill_in("{nccl}/lib:{other}", {"nccl": "/n"}) == "/n/lib:{other}"
