"""Two builds without cache are one image, or the check names the step, the file and the bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import NotReproducible, UsageError
from dih20.image.steps import Step
from dih20.lock import Lock
from dih20.paths import REPOSITORY
from dih20.rebuild import image as image_check
from dih20.rebuild.choice import checker
from dih20.rebuild.image import KEPT, ImageCheck, judged
from dih20.rebuild.image_evidence import write_evidence
from tests.image.conftest import (  # noqa: F401 - fixtures of the image tests
    make_step,
    own_build_folder,
    small_lock,
    stand_in_config,
    wheels,
)

TIDY = """
mkdir -p /opt/tidy/__pycache__ /var/log/tidy ~root/.cache/pip
echo text > /opt/tidy/text; ln /opt/tidy/text /opt/tidy/again; ln -s text /opt/tidy/soft
date +%s.%N > /opt/tidy/__pycache__/x.cpython-313.pyc
date +%s.%N | tee /var/log/tidy/log /tmp/scratch ~root/.cache/pip/x > /var/cache/when
rm /etc/issue
useradd --system tidy
"""
TIME = "mkdir /opt/sab; printf 'built at %s\\n' $(date +%s%N) > /opt/sab/when\n"
RANDOM = "head -c 65536 /dev/zero > /opt/noise; head -c 16 /dev/urandom | dd of=/opt/noise bs=1 seek=4096 conv=notrunc 2>/dev/null\n"


@pytest.fixture
def make_check(
    engine: Any,
    standin_image: str,
    small_lock: Lock,  # noqa: F811
    stand_in_config: Any,  # noqa: F811
    ui: Console,
) -> Any:
    def make(*steps: Step) -> ImageCheck:
        return ImageCheck(
            ui=ui,
            client=engine,
            config=stand_in_config,
            lock=small_lock,
            folder=Path("unused"),
            steps=steps,
        )

    return make


@pytest.mark.docker
def test_two_builds_of_untidy_steps_are_one_image_and_leave_none_behind(
    make_check: Any,
    make_step: Any,  # noqa: F811
    engine: Any,
    tmp_path: Path,
) -> None:
    before = {entry["Id"] for entry in engine.api.images(all=True)}
    check = make_check(make_step("10-tidy", TIDY), make_step("20-none", "true\n"))
    pair = check.pair()
    assert pair.difference is None
    assert pair.first.id == pair.second.id
    assert pair.first.folder != pair.second.folder
    assert pair.first.written_bytes > 0
    assert pair.second.written_bytes > 0, "the second build was not taken from the first"
    assert judged(Console(), "x", [pair])["pairs"][0]["equal"]
    assert {entry["Id"] for entry in engine.api.images(all=True)} == before
    write_evidence(Console(), tmp_path / "e.json", check.config, check.lock, [pair.as_dict()])
    written = json.loads((tmp_path / "e.json").read_text())
    assert (written["equal"], written["ids"]) == ("1 of 1", [pair.first.id])


@pytest.mark.docker
def test_a_step_that_writes_the_time_or_a_random_number_is_named_with_file_and_bytes(
    make_check: Any,
    make_step: Any,  # noqa: F811
    engine: Any,
) -> None:
    check = make_check(
        make_step("10-fine", "echo fine > /opt/fine\n"),
        make_step("20-sabotage", TIME + RANDOM),
        make_step("30-after", "echo after > /opt/after\n"),
    )
    try:
        pair = check.pair()
        with pytest.raises(NotReproducible) as caught:
            judged(Console(), "x", [pair])
        kept = [engine.images.get(f"{KEPT}:{name}").id for name in ("first", "second")]
    finally:
        for name in ("first", "second"):
            engine.images.remove(f"{KEPT}:{name}", force=True)
    assert kept == [pair.first.id, pair.second.id]
    difference = pair.difference
    assert difference is not None
    assert difference.layer == "step 20-sabotage"
    noise, when = difference.members
    assert (noise.member, noise.kind) == ("opt/noise", "content")
    assert noise.bytes is not None
    assert 4096 <= noise.bytes[0] <= noise.bytes[1] < 4112
    assert (when.member, when.kind) == ("opt/sab/when", "content")
    assert when.bytes is not None
    assert when.bytes[0] >= len("built at ")
    assert "step 20-sabotage: opt/noise: content at bytes 4" in caught.value.found
    assert caught.value.exit_code == 71
    assert caught.value.details["pairs"][0]["difference"]["members"][1]["member"] == "opt/sab/when"


def test_an_unknown_check_and_a_count_of_none_are_refused() -> None:
    with pytest.raises(UsageError, match="--check layers"):
        checker("layers")
    with pytest.raises(UsageError, match="--times 0"):
        image_check.check(Console(), times=0)
    with pytest.raises(UsageError, match="--check wheels --base stand-in"):
        checker("wheels", "stand-in")


def test_a_plan_builds_nothing(ui: Console) -> None:
    plan = image_check.check(ui, times=3, only="ci", plan_only=True)["plan"]
    assert [(action["verb"], action["target"]) for action in plan["actions"]] == [
        ("build twice", "di-ci")
    ]


def test_the_committed_evidence_shows_one_id_in_five_double_builds() -> None:
    shown = json.loads((REPOSITORY / "docs/evidence/reproducible-image.json").read_text())
    ids = {pair[which]["id"] for pair in shown["pairs"] for which in ("first", "second")}
    assert len(shown["pairs"]) == 5
    assert shown["ids"] == list(ids)
    assert all(pair["second"]["written_bytes"] > 1e9 for pair in shown["pairs"]), (
        "nothing was reused"
    )
