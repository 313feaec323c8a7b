"""Steps become layers: hits and misses with their reason, no network, nothing of the inputs left inside."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import ImageError, Unresolved
from dih20.image.abandoned import step_name
from dih20.image.build import BuiltImage, build_image, make_plan
from dih20.image.build_session import only_build
from dih20.image.steps import Step
from dih20.lock import Lock
from tests.signalled import signalled

pytestmark = pytest.mark.docker


@pytest.fixture
def built(engine: Any, standin_image: str, small_lock: Lock, stand_in_config: Any) -> Any:
    """Build given steps on the stand-in with the small lock; gives (image, console)."""

    def run(*steps: Step, lock: Lock | None = None, **others: Any) -> tuple[BuiltImage, Console]:
        ui = Console(as_json=True)
        image = build_image(ui, engine, stand_in_config, lock or small_lock, steps=steps, **others)
        return image, ui

    return run


def statuses(ui: Console) -> dict[str, tuple[str, str]]:
    return {step.target: (step.status, step.note) for step in ui.steps if step.verb == "layer"}


def test_a_second_build_is_all_hits_and_gives_the_same_image(built: Any, make_step: Any) -> None:
    steps = [make_step("10-one", "echo one > /one\n"), make_step("20-two", "echo two > /two\n")]
    first, _ = built(*steps)
    started = time.monotonic()
    second, ui = built(*steps)
    assert time.monotonic() - started < 5
    assert (second.id, second.tag) == (first.id, first.tag)
    assert {status for status, _ in statuses(ui).values()} == {"hit"}


def test_a_changed_script_rebuilds_from_that_step_on_and_says_so(
    built: Any, make_step: Any
) -> None:
    one, three = make_step("11-one", "echo 1 > /one\n"), make_step("13-three", "echo 3 > /three\n")
    built(one, make_step("12-two", "echo 2 > /two\n"), three)
    changed, ui = built(one, make_step("12-two", "echo other > /two\n"), three)
    said = statuses(ui)
    assert said["11-one"][0] == "hit"
    assert said["12-two"] == ("miss", "changed: script")
    assert said["13-three"] == ("miss", "changed: step below")
    assert changed.tag.rpartition(":")[2] == changed.identity[:12]


def test_a_changed_input_is_named(
    built: Any, make_step: Any, small_lock: Lock, wheels: Any
) -> None:
    step = make_step("14-files", "ls /mnt/requirements > /listed\n", inputs=("requirements",))
    built(step)
    other = wheels.make("einops", "0.9", {"einops.py": ""})
    lock = small_lock.model_copy(update={"python": {"cp313": (other,)}})
    _, ui = built(step, lock=lock)
    assert statuses(ui)["14-files"] == ("miss", "changed: input requirements")


def test_a_step_has_no_network_and_cannot_write_its_inputs(built: Any, make_step: Any) -> None:
    script = (
        'test "$(ls /sys/class/net)" = lo\n'
        "if touch /mnt/step.sh; then exit 9; fi\n"
        'test "$STEP_SAYS" = here\n'
    )
    image, _ = built(make_step("15-alone", script, env={"STEP_SAYS": "here"}))
    assert image.id


def test_the_steps_own_command_and_mounts_do_not_stay_in_the_image(
    built: Any, make_step: Any, engine: Any, standin_image: str
) -> None:
    image, _ = built(make_step("16-file", "echo x > /x\n", env={"CPATH": "/opt/di/include"}))
    was, now = (engine.images.get(name).attrs["Config"] for name in (standin_image, image.tag))
    assert now["Cmd"] == was["Cmd"]
    assert not now["Entrypoint"]
    assert now["User"] == was["User"]
    assert "CPATH=/opt/di/include" in now["Env"]
    assert "DEEPINFER_ACCELERATOR=nvidia" in now["Env"]
    labels = now["Labels"]
    assert labels["dih20.role"] == "image"
    assert labels["dih20.base"] == "stand-in"
    assert labels["dih20.identity"] == image.identity
    changes = {name for name in _files_above(engine, image.tag, standin_image) if name != "x"}
    assert changes == set()


def test_labels_alone_make_a_new_image_of_the_same_layers(
    built: Any, make_step: Any, engine: Any
) -> None:
    step = make_step("17-file", "echo y > /y\n")
    first, _ = built(step, labels={"dih20.patchset": "a"})
    second, _ = built(step, labels={"dih20.patchset": "b"})
    layers = [engine.images.get(image.id).attrs["RootFS"]["Layers"] for image in (first, second)]
    assert first.id != second.id
    assert layers[0] == layers[1]
    assert engine.images.get(second.tag).labels["dih20.patchset"] == "b"


def test_no_wheel_and_no_deb_stays_in_the_image(
    built: Any, real_steps: dict[str, Step], engine: Any, standin_image: str, make_step: Any
) -> None:
    names = ("20-python", "30-headers", "40-nccl", "50-requirements")
    some_debs = make_step(
        "10-debs", "cp /mnt/requirements/*.whl /tmp/; rm /tmp/*.whl\n", inputs=("requirements",)
    )
    image, _ = built(some_debs, *(real_steps[name] for name in names))
    files = _files_above(engine, image.tag, standin_image)
    assert "usr/local/bin/python" in files
    assert "opt/di/include/cusparse.h" in files
    assert any(name.endswith("nvidia/nccl/lib/libnccl.so.2") for name in files)
    left = [name for name in files if name.endswith((".whl", ".deb"))]
    assert left == []


def test_a_wheel_that_a_step_leaves_behind_would_be_seen(
    built: Any, make_step: Any, engine: Any, standin_image: str
) -> None:
    image, _ = built(
        make_step("18-left", "cp /mnt/requirements/*.whl /opt/\n", inputs=("requirements",))
    )
    assert any(name.endswith(".whl") for name in _files_above(engine, image.tag, standin_image))


def _files_above(engine: Any, image: str, base: str) -> list[str]:
    """Give the names in every layer that the image has above its base, hidden ones included.

    A layer's own folder is read where the engine keeps it; the topmost comes first.
    """
    attributes = engine.images.get(image).attrs
    data = attributes["GraphDriver"]["Data"]
    folders = [data["UpperDir"], *data.get("LowerDir", "").split(":")]
    layers = [attributes["RootFS"]["Layers"], engine.images.get(base).attrs["RootFS"]["Layers"]]
    assert len(folders) == len(layers[0]), "one folder for each layer"
    own = folders[: len(layers[0]) - len(layers[1])]
    return [
        str((Path(folder) / name).relative_to(top))
        for top in own
        for folder, _, names in os.walk(top)
        for name in names
    ]


COMPILER_FAILS = """
i=0
while [ $i -lt 3000 ]; do echo "building part $i of the kernel"; i=$((i + 1)); done
printf 'a byte that is no text: \\377\\n'
cat > /tmp/bad.cpp <<'END'
#include <no_such_header.h>
int main() { return undefined_name; }
END
g++ -c /tmp/bad.cpp -o /tmp/bad.o
"""


def test_a_failed_step_shows_the_compilers_own_error_and_where_the_log_is(
    built: Any,
    make_step: Any,
    engine: Any,
    capfd: pytest.CaptureFixture[str],
    own_build_folder: Path,
) -> None:
    before = len(engine.containers.list(all=True))
    with pytest.raises(ImageError) as caught:
        built(make_step("10-fine", "true\n"), make_step("21-compile", COMPILER_FAILS))
    error = caught.value
    assert "step 2 of 2, 21-compile" in error.found
    assert "/mnt/step.sh` exited 1" in error.found
    assert "fatal error: no_such_header.h: No such file or directory" in error.found
    assert "building part" not in error.found
    log = own_build_folder / "logs" / "image-stand-in-21-compile.log"
    assert str(log) in error.remedy
    text = log.read_text()
    assert "building part 0 of" in text
    assert "building part 2999 of" in text
    assert "a byte that is no text: " in text
    live = capfd.readouterr().err
    assert "building part 2999" in live
    assert len(engine.containers.list(all=True)) == before


def test_a_killed_step_says_so(built: Any, make_step: Any) -> None:
    with pytest.raises(ImageError) as caught:
        built(make_step("21-killed", "echo before; sh -c 'kill -9 $$'\n"))
    assert "exited 137 (killed, most likely for memory)" in caught.value.found


def test_a_step_that_hangs_is_ended_at_its_deadline(
    built: Any, make_step: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from functools import partial

    from dih20.image import build, run_step

    monkeypatch.setattr(build, "StepRun", partial(run_step.StepRun, limit_s=1.5))
    with pytest.raises(ImageError) as caught:
        built(make_step("21-hangs", "echo waiting for nobody; sleep 600\n"))
    assert "still running after 2 s; its last line: " in caught.value.found
    # A busy machine may not come to the first line in that time.
    assert caught.value.found.endswith(("waiting for nobody", "(it printed nothing)"))
    names = [container.name for container in engine.containers.list(all=True)]
    assert not [name for name in names if name.startswith("dih20-image-step")]


def test_the_step_after_a_failure_was_mended_goes_on_from_what_is_there(
    built: Any, make_step: Any
) -> None:
    fine = make_step("22-fine", "echo fine > /fine\n")
    with pytest.raises(ImageError):
        built(fine, make_step("23-broken", "exit 3\n"))
    _, ui = built(fine, make_step("23-broken", "exit 0\n"))
    assert statuses(ui)["22-fine"][0] == "hit"


def test_an_apt_list_with_an_unknown_key_is_named_with_the_key(built: Any, make_step: Any) -> None:
    cases = Path(__file__).parent / "cases" / "apt-foreign-key"
    script = (
        "mkdir /srv/repo; cp /mnt/lib/InRelease /mnt/lib/Packages /srv/repo/\n"
        "echo 'deb file:///srv/repo ./' > /etc/apt/sources.list.d/foreign.list\n"
        "apt-get update\n"
    )
    uses = (cases / "InRelease", cases / "Packages")
    with pytest.raises(ImageError) as caught:
        built(make_step("24-apt", script, uses=uses))
    assert "file:/srv/repo ./" in caught.value.found
    assert "B3B3D783339FA5065B9A11AB2A322E805DE68005" in caught.value.found
    assert "key B3B3D783339FA5065B9A11AB2A322E805DE68005" in caught.value.remedy
    assert "file:/srv/repo" in caught.value.remedy


def test_a_package_that_pip_cannot_find_is_named(built: Any, make_step: Any) -> None:
    script = "python3 -m pip install --break-system-packages --no-index --find-links /mnt nosuchpackage==1.2\n"
    with pytest.raises(ImageError) as caught:
        built(make_step("25-pip", script))
    assert "No matching distribution found for nosuchpackage==1.2" in caught.value.found
    assert "nosuchpackage==1.2" in caught.value.remedy


def test_a_stubs_folder_in_the_run_time_library_path_is_refused(
    built: Any, make_step: Any, stand_in_config: Any, engine: Any, small_lock: Lock
) -> None:
    path = "/usr/local/cuda/lib64:/usr/local/cuda/lib64/stubs"
    config = stand_in_config.model_copy(update={"environment": {"LD_LIBRARY_PATH": path}})
    with pytest.raises(ImageError, match="stubs"):
        build_image(
            Console(as_json=True), engine, config, small_lock, steps=[make_step("26-x", "true\n")]
        )


def test_an_interrupt_leaves_no_container_and_the_next_build_works(
    built: Any, make_step: Any, engine: Any
) -> None:
    before = {container.id for container in engine.containers.list(all=True)}
    step = make_step("27-long", "echo started; sleep 600\n")
    with (
        signalled(lambda: {one.id for one in engine.containers.list(sparse=True)} - before),
        pytest.raises(KeyboardInterrupt),
    ):
        built(step)
    assert {container.id for container in engine.containers.list(all=True)} == before
    image, _ = built(make_step("27-long", "echo quick\n"))
    assert image.id


def test_a_container_left_by_a_killed_build_is_removed_by_the_next_and_no_other(
    built: Any, make_step: Any, engine: Any, standin_image: str
) -> None:
    with only_build(engine) as holder:
        left = step_name(holder)
    others = [step_name("of-another-machine"), "my-step"]
    made = [
        engine.containers.create(standin_image, ["true"], name=name, network_mode="none")
        for name in (left, *others)
    ]
    built(make_step("28-x", "true\n"))
    names = {container.name for container in engine.containers.list(all=True)}
    for container in made[1:]:
        container.remove()
    assert left not in names
    assert names.issuperset(others)


def test_a_plan_shows_what_would_run_and_runs_nothing(
    make_step: Any, engine: Any, small_lock: Lock, stand_in_config: Any
) -> None:
    images = {image.id for image in engine.images.list(all=True)}
    steps = [make_step("29-never", "echo never > /never\n")]
    plan = make_plan(engine, stand_in_config, small_lock, steps)
    assert [(a.verb, a.needed) for a in plan.actions] == [
        ("use", False),
        ("run", True),
        ("normalise", True),
        ("tag", True),
    ]
    unknown = make_plan(None, stand_in_config, small_lock, steps)
    assert [action.mark for action in unknown.actions] == ["=", "?", "?", "?"]
    assert {image.id for image in engine.images.list(all=True)} == images


def test_an_unresolved_base_names_the_command_that_resolves_it(
    engine: Any, small_lock: Lock, stand_in_config: Any
) -> None:
    base = small_lock.base("vllm").model_copy(update={"digest": "unresolved"})
    lock = small_lock.model_copy(update={"bases": {**small_lock.bases, "vllm": base}})
    config = stand_in_config.model_copy(update={"base": "vllm"})
    with pytest.raises(Unresolved) as caught:
        build_image(Console(as_json=True), engine, config, lock)
    assert "./inv lock --only base" in caught.value.remedy


def test_a_base_that_the_engine_lacks_is_not_pulled(
    engine: Any, small_lock: Lock, stand_in_config: Any
) -> None:
    digest = "sha256:" + "1" * 64
    base = small_lock.base("vllm").model_copy(update={"digest": digest})
    lock = small_lock.model_copy(update={"bases": {**small_lock.bases, "vllm": base}})
    config = stand_in_config.model_copy(update={"base": "vllm"})
    with pytest.raises(ImageError) as caught:
        build_image(Console(as_json=True), engine, config, lock, steps=[])
    assert caught.value.remedy == f"docker pull {base.reference}"
