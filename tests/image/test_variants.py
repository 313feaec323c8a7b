"""A variant of the image: its layer on top of the finished one, its packages in the lock beside the image's."""

from __future__ import annotations

import pytest

from dih20.config import load_image
from dih20.errors import UsageError
from dih20.fetch.groups import chosen_groups, groups_of
from dih20.image.inputs import inputs_of
from dih20.image.step_plan import plan_steps
from dih20.image.steps import load_steps, load_variant_steps
from dih20.lock import Lock
from dih20.lock.wants import wanted_by
from dih20.wheels.image_facts import ImageFacts


def test_a_variants_layer_comes_after_those_of_the_image_which_stay_hits() -> None:
    config, lock = load_image(), Lock.load()
    variant = config.variant("serve-cpu")
    assert (variant.name, variant.base) == ("serve-cpu", "stand-in")
    image = plan_steps(config.model_copy(update={"base": "stand-in"}), lock, steps=load_steps())
    both = plan_steps(variant, lock, steps=load_variant_steps("serve-cpu"))
    assert [plan.key for plan in both[: len(image)]] == [plan.key for plan in image]
    assert [plan.step.name for plan in both[len(image) :]] == ["95-torch-cpu"]


def test_a_variants_packages_are_locked_summed_and_fetched_on_request_alone() -> None:
    lock = Lock.load()
    step = load_variant_steps("serve-cpu")[-1]
    inputs = inputs_of(step, lock, lock.base("stand-in"))
    assert "python3-torch" in {deb.name for deb in inputs.debs}
    sums = next(file for file in inputs.files if file.name == "serve-cpu/SHA256SUMS")
    assert sums.text is not None
    assert len(sums.text.splitlines()) == len(inputs.debs)
    there = {deb.name for deb in lock.debs("stand-in")} | {
        p.name for p in lock.base("stand-in").packages
    }
    assert not there & {deb.name for deb in inputs.debs}
    assert "serve-cpu" in groups_of(lock, "stand-in")
    assert "serve-cpu" not in chosen_groups(lock, "stand-in", "")
    assert "serve-cpu" not in groups_of(lock, "vllm")


def test_another_package_of_a_variant_makes_the_locks_section_stale() -> None:
    image = load_image()
    more = image.variants["serve-cpu"].model_copy(update={"apt": ("python3-torch", "less")})
    changed = image.model_copy(update={"variants": {"serve-cpu": more}})
    assert wanted_by("apt stand-in", changed) != wanted_by("apt stand-in", image)
    assert wanted_by("apt vllm", changed) == wanted_by("apt vllm", image)


def test_an_unknown_variant_is_an_error_that_lists_those_there_are() -> None:
    with pytest.raises(UsageError, match="no variant serve-gpu") as refused:
        load_image().variant("serve-gpu")
    assert "serve-cpu" in refused.value.expected


@pytest.mark.parametrize(
    ("torch", "counts"),
    [
        ("none", False),
        ("2.6.0+debian git unknown cuda none", False),
        ("2.13.0 git a cuda 13.0", True),
    ],
)
def test_a_torch_without_cuda_is_none_to_build_wheels_against(torch: str, counts: bool) -> None:
    facts = ImageFacts(
        image_id="x", python_tag="cp313", gcc="14", nvcc="none", glibc="2.41", torch=torch,
        site_packages="/", nccl=(), environment={}, labels={},
    )  # fmt: skip
    assert facts.has_torch is counts
