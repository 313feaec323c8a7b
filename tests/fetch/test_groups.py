"""Which groups come only when they are named, and that the help and the manual say so."""

from __future__ import annotations

import tasks
from dih20.fetch.groups import ON_REQUEST, variants_on
from dih20.lock import Lock
from dih20.paths import REPOSITORY


def test_the_help_and_the_manual_name_every_group_that_comes_only_when_named() -> None:
    on_request = [*ON_REQUEST, *variants_on(Lock.load(), "stand-in")]
    manual = (REPOSITORY / "docs/inputs.md").read_text()
    for text in (tasks.namespace["fetch"].help["only"], manual.split("## The cache")[1]):
        for name in on_request:
            assert name in text
