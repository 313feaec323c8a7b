"""Versions are ordered as dpkg orders them."""

from __future__ import annotations

import itertools
import shutil
import subprocess

import pytest

from dih20.debs.version import compare, holds

#: from old to new
ORDERED = (
    "0.9",
    "1.0~~",
    "1.0~rc1-1",
    "1.0~rc1-2",
    "1.0-1~",
    "1.0-1",
    "1.0-1+b1",
    "1.0-1+deb13u1",
    "1.0-1.1",
    "1.0a-1",
    "1.0+dfsg-1",
    "1.0.1-1",
    "1.2-1",
    "1.10-1",
    "2025.1-1",
    "1:0.5-1",
)


def test_each_version_is_older_than_every_one_after_it() -> None:
    for (i, one), (j, other) in itertools.product(enumerate(ORDERED), repeat=2):
        assert (compare(one, other) > 0) == (i > j), (one, other)
        assert (compare(one, other) == 0) == (i == j), (one, other)


def test_spellings_of_one_version_are_equal() -> None:
    for one, other in (("1.0", "0:1.0"), ("1.0", "1.0-0"), ("1.02", "1.2"), ("1.0.", "1.0.0")):
        assert compare(one, other) == 0, (one, other)


@pytest.mark.parametrize(
    ("operator", "kept"), [("<<", "a"), ("<=", "ab"), ("=", "b"), (">=", "bc"), (">>", "c")]
)
def test_a_relation_keeps_what_its_sign_says(operator: str, kept: str) -> None:
    versions = {"a": "1.0~rc1", "b": "1.0", "c": "1.0-1"}
    assert "".join(k for k, v in versions.items() if holds(v, operator, "1.0")) == kept


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="no dpkg on this machine to compare with")
def test_dpkg_agrees() -> None:
    for one, other in itertools.pairwise(ORDERED):
        subprocess.run(["dpkg", "--compare-versions", one, "lt", other], check=True)
