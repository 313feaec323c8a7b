"""docs/ names files that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

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


def test_port_status_gives_the_counts_of_the_gpu_records() -> None:
    """Every record is named on the page once, with the number of tests that passed in it."""
    page = (REPOSITORY / "docs/port-status.md").read_text(encoding="utf-8")
    cells = re.findall(r"\*\*GPU\*\* \(([^)]*)\)", page)
    named = [(op, int(count)) for cell in cells for op, count in re.findall(r"`(\w+)` (\d+)", cell)]
    records = [
        json.loads(file.read_text()) for file in REPOSITORY.glob("tests/gpu/evidence/*.json")
    ]
    assert sorted(named) == sorted((record["op"], record["num_passed"]) for record in records)


def test_the_page_on_ci_has_a_row_for_every_job() -> None:
    page = (REPOSITORY / "docs/ci.md").read_text(encoding="utf-8")
    jobs = yaml.safe_load((REPOSITORY / "ci/jobs.yaml").read_text())["jobs"]
    assert re.findall(r"^\| (\w+) \| .* \| (change|weekly|by hand) \|", page, re.M) == [
        (name, job["when"].replace("-", " ")) for name, job in jobs.items()
    ]


def test_jobs_ran_inside_the_image_that_was_built_twice() -> None:
    evidence = REPOSITORY / "docs/evidence"
    ids = json.loads((evidence / "ci-image.json").read_text())["ids"]
    jobs = json.loads((evidence / "ci-jobs.json").read_text())["jobs"]
    assert {job["in the image"]["image"]["id"] for job in jobs.values()} == set(ids)
