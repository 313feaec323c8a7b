"""The step scripts are the single source of the image, and each keeps the rules of a step."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from dih20.config import load_image
from dih20.console import Console
from dih20.errors import ConfigError, ImageError, UsageError
from dih20.image import render
from dih20.image.inputs import inputs_of
from dih20.image.run_step import COMMAND
from dih20.image.step_plan import plan_steps
from dih20.image.steps import Step, load_steps, refuse_stubs
from dih20.lock import Lock
from dih20.paths import REPOSITORY

STEPS = load_steps()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
class TestEachScript:
    def test_stops_at_the_first_failing_command(self, step: Step) -> None:
        assert "set -eu" in step.script.read_text().splitlines()

    def test_is_valid_shell(self, step: Step) -> None:
        subprocess.run(["sh", "-n", str(step.script)], check=True)

    def test_checks_nccl_when_it_runs_pip(self, step: Step) -> None:
        lines = [line for line in step.script.read_text().splitlines() if not line.startswith("#")]
        runs_pip = [i for i, line in enumerate(lines) if "pip" in line]
        checks = [i for i, line in enumerate(lines) if "/mnt/lib/nccl.py --expect" in line]
        assert not runs_pip or (checks and checks[-1] > runs_pip[-1])

    def test_downloads_nothing(self, step: Step) -> None:
        text = "".join(
            path.read_text() for path in (step.script, *step.uses) if path.suffix == ".sh"
        )
        for word in ("curl", "wget", "http://", "https://", "apt-get update", "--index-url"):
            assert word not in text

    def test_names_every_helper_that_it_calls(self, step: Step) -> None:
        called = {
            word.removeprefix("/mnt/lib/")
            for word in step.script.read_text().split()
            if word.startswith("/mnt/lib/")
        }
        assert called == {path.name for path in step.uses}

    def test_reads_only_inputs_that_it_declares(self, step: Step) -> None:
        words = step.script.read_text().split()
        groups = {
            w.removeprefix("/mnt/")
            for w in words
            if w in ("/mnt/debs", "/mnt/headers", "/mnt/nccl", "/mnt/requirements")
        }
        assert groups == set(step.inputs)


def test_a_script_that_the_image_file_does_not_list_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "10-listed.sh").write_text("true\n")
    (tmp_path / "steps" / "20-forgotten.sh").write_text("true\n")
    (tmp_path / "image.yaml").write_text("steps:\n  - name: 10-listed\n")
    with pytest.raises(ConfigError, match="20-forgotten") as caught:
        load_steps(tmp_path)
    assert "10-listed" in caught.value.found


def test_an_unknown_helper_or_key_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "10-a.sh").write_text("true\n")
    (tmp_path / "image.yaml").write_text("steps:\n  - {name: 10-a, uses: [nosuch.py]}\n")
    with pytest.raises(ConfigError, match=r"nosuch\.py"):
        load_steps(tmp_path)
    (tmp_path / "image.yaml").write_text("steps:\n  - {name: 10-a, input: [debs]}\n")
    with pytest.raises(ConfigError, match="did you mean 'inputs'"):
        load_steps(tmp_path)


@pytest.mark.parametrize(
    ("entry", "refused"),
    [
        ("LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs", True),
        ("LD_LIBRARY_PATH=/a:/usr/local/cuda/lib64/stubs/:/b", True),
        ("LD_LIBRARY_PATH=/usr/local/cuda/lib64", False),
        ("LIBRARY_PATH=/usr/local/cuda/lib64/stubs", False),
        ("LD_LIBRARY_PATH=/opt/no-stubs-here", False),
    ],
)
def test_a_stubs_folder_is_refused_only_where_programs_look_at_run_time(
    entry: str, refused: bool
) -> None:
    if not refused:
        refuse_stubs([entry], "image x")
        return
    with pytest.raises(ImageError) as caught:
        refuse_stubs(["PATH=/bin", entry], "image x")
    assert "stubs" in caught.value.found
    assert "image x" in caught.value.found


def test_each_part_of_a_step_moves_its_key(
    make_step: Any, small_lock: Lock, stand_in_config: Any, tmp_path: Path, wheels: Any
) -> None:
    def key(step: Step, lock: Lock = small_lock) -> str:
        return plan_steps(stand_in_config, lock, steps=[step])[0].key

    helper = tmp_path / "helper.sh"
    helper.write_text("one\n")
    base = make_step("10-a", "true\n", inputs=("requirements",), uses=(helper,))
    first = key(base)
    assert key(base) == first
    assert key(make_step("10-a", "false\n", inputs=("requirements",), uses=(helper,))) != first
    assert (
        key(make_step("10-a", "true\n", inputs=("requirements", "nccl"), uses=(helper,))) != first
    )
    again = make_step("10-a", "true\n", inputs=("requirements",), uses=(helper,), env={"A": "1"})
    assert key(again) != first
    other = small_lock.model_copy(update={"python": {"cp313": (wheels.make("x", "1", {}),)}})
    again = make_step("10-a", "true\n", inputs=("requirements",), uses=(helper,))
    assert key(again, other) != first
    helper.write_text("two\n")
    assert key(again) != first


def test_the_inputs_of_a_step_are_what_the_lock_names(small_lock: Lock, real_steps: Any) -> None:
    base = small_lock.base("stand-in")
    files = {
        entry.name: entry for entry in inputs_of(real_steps["40-nccl"], small_lock, base).files
    }
    nccl = small_lock.nccl()
    assert files[f"nccl/{nccl.filename}"].sha256 == nccl.sha256
    assert files["nccl.version"].text == "2.32.3\n"
    assert (
        files["nccl/requirements.txt"].text
        == f"nvidia-nccl-cu13==2.32.3 --hash=sha256:{nccl.sha256}\n"
    )


class TestTheDockerfile:
    def text(self, lock: Lock) -> str:
        return render.dockerfile(load_image().model_copy(update={"base": "stand-in"}), lock)

    def test_runs_the_same_steps_in_the_same_order(self, small_lock: Lock) -> None:
        runs = [line for line in self.text(small_lock).splitlines() if line.startswith("RUN")]
        assert len(runs) == len(STEPS)
        for line, step in zip(runs, STEPS, strict=True):
            assert f"source=steps/{step.name},target=/mnt" in line
            assert "--network=none" in line
            assert line.endswith(" ".join(COMMAND))

    def test_sets_the_same_variables_before_the_step_that_has_them(self, small_lock: Lock) -> None:
        text = self.text(small_lock)
        for step in STEPS:
            for name in step.env:
                assert text.index(f"ENV {name}=") < text.index(f"steps/{step.name},")

    def test_is_written_with_every_input_beside_it(
        self, small_lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Lock, "load", lambda *_: small_lock)
        monkeypatch.setattr(render, "plan_steps", _without_debs)
        into = tmp_path / "context"
        ui = Console(as_json=True)
        render.render_dockerfile(
            ui, base="stand-in", image="di-h20", into=str(into), plan_only=False
        )
        (into / "steps" / "old").mkdir()
        render.render_dockerfile(
            ui, base="stand-in", image="di-h20", into=str(into), plan_only=False
        )
        assert not (into / "steps" / "old").exists()
        for step in STEPS:
            assert (into / "steps" / step.name / "step.sh").read_text() == step.script.read_text()
        assert (into / "steps" / "40-nccl" / "nccl" / small_lock.nccl().filename).is_file()

    def test_is_not_written_over_a_folder_of_somebody_else(
        self, small_lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Lock, "load", lambda *_: small_lock)
        (tmp_path / "thesis.txt").write_text("mine")
        with pytest.raises(UsageError, match="other files"):
            render.render_dockerfile(
                Console(as_json=True),
                base="stand-in",
                image="di-h20",
                into=str(tmp_path),
                plan_only=False,
            )
        assert [p.name for p in tmp_path.iterdir() if p.name != "wheels"] == ["thesis.txt"]

    def test_with_plan_writes_nothing(
        self, small_lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Lock, "load", lambda *_: small_lock)
        into = tmp_path / "none"
        render.render_dockerfile(
            Console(as_json=True), base="stand-in", image="di-h20", into=str(into), plan_only=True
        )
        assert not into.exists()


def _without_debs(*arguments: Any, **others: Any) -> Any:
    """Plan the steps with the apt packages left out, which this test does not fetch."""
    from dataclasses import replace

    plans = plan_steps(*arguments, **others)
    return tuple(
        replace(
            p,
            inputs=replace(
                p.inputs, files=tuple(f for f in p.inputs.files if not f.name.startswith("debs/"))
            ),
        )
        for p in plans
    )


def test_the_templates_hold_no_decisions() -> None:
    text = (REPOSITORY / "images" / "di-h20" / "Dockerfile.j2").read_text()
    for word in ("{% if", "{% set", "{% macro"):
        assert word not in text
