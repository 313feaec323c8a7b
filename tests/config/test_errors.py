"""What a wrong configuration file leads to: file, line, key path, and the key that was meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dih20.config import load_host, load_mirrors
from dih20.config.engine import EngineConfig
from dih20.config.host import HostConfig
from dih20.config.image import ImageConfig
from dih20.config.reading import Section, read_config
from dih20.errors import ConfigError
from dih20.paths import REPOSITORY

HOST = """\
name: box
address: box
gpus: 8
work_dir: /data/x
mounts:
  - host: /data
    container: /data
log:
  max_size: 100m
"""


def refused(tmp_path: Path, text: str, model: type[Section] = HostConfig) -> ConfigError:
    path = tmp_path / "box.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as fault:
        read_config(path, model)
    assert fault.value.exit_code == 3
    return fault.value


def test_an_unknown_key_is_named_with_file_line_and_the_key_that_was_meant(tmp_path: Path) -> None:
    fault = refused(tmp_path, HOST + "compute_capabilty: '9.0'\n")
    assert (
        f"{tmp_path}/box.yaml:10: unknown key 'compute_capabilty': did you mean 'compute_capability'?"
        in fault.found
    )


def test_an_unknown_key_inside_a_list_is_named_with_its_path(tmp_path: Path) -> None:
    fault = refused(
        tmp_path, HOST.replace("    container: /data", "    container: /data\n    readonly: true")
    )
    assert "box.yaml:8: unknown key 'mounts[0].readonly': did you mean 'read_only'?" in fault.found


def test_an_unknown_key_inside_a_section_is_compared_with_that_section_s_keys(
    tmp_path: Path,
) -> None:
    fault = refused(tmp_path, HOST.replace("  max_size: 100m", "  max_siz: 100m"))
    assert "box.yaml:9: unknown key 'log.max_siz': did you mean 'max_size'?" in fault.found
    assert "address" not in fault.expected


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    assert "key 'gpus' is missing" in refused(tmp_path, HOST.replace("gpus: 8\n", "")).found


def test_a_wrong_value_is_shown_with_its_line(tmp_path: Path) -> None:
    fault = refused(tmp_path, HOST.replace("gpus: 8", "gpus: eight"))
    assert "box.yaml:3: gpus: 'eight': input should be a valid integer" in fault.found


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    fault = refused(
        tmp_path,
        HOST.replace("gpus: 8", "gpus: eight").replace("work_dir: /data/x", "work_dir: data"),
    )
    assert len(fault.found.splitlines()) == 2
    assert "box.yaml:4: work_dir: 'data' is not an absolute path" in fault.found


def test_a_key_given_twice_is_an_error_and_not_the_last_one(tmp_path: Path) -> None:
    fault = refused(tmp_path, HOST + "gpus: 4\n")
    assert "box.yaml:10: key 'gpus' is given twice, first in line 3" in fault.found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("name: [box\n", "box.yaml:2: not YAML"),
        ("- a\n- b\n", "box.yaml:1: the file holds a seq, not a mapping"),
        ("just text\n", "box.yaml:1: the file holds a str, not a mapping"),
        ("", "key 'name' is missing"),
    ],
)
def test_a_file_that_is_not_a_mapping_is_an_error(tmp_path: Path, text: str, found: str) -> None:
    assert found in refused(tmp_path, text).found


def test_a_missing_host_names_those_that_exist_and_the_nearest() -> None:
    with pytest.raises(ConfigError) as fault:
        load_host("nv-h2O")
    assert fault.value.found == "no file configs/hosts/nv-h2O.yaml"
    assert "one of: nv-h20" in fault.value.expected
    assert "did you mean 'nv-h20'?" in fault.value.remedy


def test_a_host_is_also_taken_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "box.yaml").write_text(HOST)
    assert load_host(str(tmp_path / "box.yaml")).where == "[box]:22"


def test_without_a_mirrors_file_the_machine_s_own_settings_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DI_CONFIGS", str(tmp_path))
    assert load_mirrors().pip.indexes == ()


def test_models_do_not_change_after_they_are_read() -> None:
    host = load_host("nv-h20")
    with pytest.raises(ValueError, match="frozen"):
        host.gpus = 4  # what must not work


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("environment:\n  CUDA_VISIBLE_DEVICES: '0'\n", "CUDA_VISIBLE_DEVICES cannot be set here"),
        ("environment:\n  LD_LIBRARY_PATH: /usr/local/cuda/lib64/stubs\n", "holds a stubs folder"),
        ("environment:\n  'NO SPACE': '1'\n", "cannot be the name of an environment variable"),
        ("max_num_batched_tokens: 8192\n", "below max_model_len 16384"),
        ("gpu_memory_utilization: 1.5\n", "less than 1"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_here(
    tmp_path: Path, text: str, found: str
) -> None:
    assert found in refused(tmp_path, text, EngineConfig).found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("{sdist: deepinfer==0.1.0, path: ../x}", "given: sdist, path"),
        ("{}", "given: none"),
        ("{git: ../x}", "git and commit belong together"),
        ("{git: ../x, commit: main}", "string should match pattern"),
        ("{sdist: 'deepinfer 0.1'}", "is not a requirement"),
    ],
)
def test_a_source_is_exactly_one_of_its_kinds(tmp_path: Path, source: str, found: str) -> None:
    text = (REPOSITORY / "configs/images/di-h20.yaml").read_text()
    changed = text.replace("    sdist: deepinfer-gemm==2.8.2\n", "").replace(
        "  deep_gemm:", f"  deep_gemm: {source}"
    )
    assert changed != text
    assert found in refused(tmp_path, changed, ImageConfig).found


def test_a_task_ends_with_the_error_s_exit_code_and_no_trace(tmp_path: Path) -> None:
    (tmp_path / "mirrors.yaml").write_text("pip:\n  index: x\n")
    command = [
        sys.executable,
        "-m",
        "invoke",
        "--search-root",
        str(REPOSITORY),
        "fetch",
        "--base",
        "stand-in",
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "DI_CONFIGS": str(tmp_path)},
    )
    assert done.returncode == 3
    assert "no file" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
