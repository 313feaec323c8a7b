"""docs/ names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dih20.paths import REPOSITORY

PAGES = sorted(REPOSITORY.glob("docs/*.md")) + sorted(REPOSITORY.glob("README*.md"))


def test_every_case_names_tests_that_exist() -> None:
    text = (REPOSITORY / "docs/cases.md").read_text()
    named = re.findall(r"`(tests/[^`]+)`", text)
    assert len(named) > 30
    assert [path for path in named if not (REPOSITORY / path).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_numbers_in_the_readme_are_those_of_the_result_files() -> None:
    from bench.readme_numbers import with_numbers

    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert with_numbers(text) == text, "run: python -m bench.readme_numbers"
