"""Project pages and parts of files, as indexes of every kind serve them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dih20.config.mirrors import Mirrors, PipMirrors
from dih20.errors import FetchError
from dih20.index.shelf import open_indexes
from tests.index.fixtures import StartIndex, mirrors_to
from tests.index.local_index import wheel

NAME = "thing-1.0-py3-none-any.whl"


@pytest.mark.parametrize("form", ["json", "html"])
def test_both_forms_list_the_same_files(start_index: StartIndex, form: str) -> None:
    index = start_index(form=form)
    served = index.add("thing", NAME, b"content")
    (file,) = open_indexes(mirrors_to(index)).files("Thing")
    assert (file.filename, file.sha256) == (NAME, served.sha256)
    assert file.url == f"{index.root}/files/thing/{NAME}"


def test_an_html_page_says_what_is_yanked_and_which_python_it_needs(
    start_index: StartIndex,
) -> None:
    index = start_index()
    body = f'<a href="/f/{NAME}#sha256={"0" * 64}" data-requires-python="&gt;=3.12" data-yanked="bad">x</a>'.encode()
    index.answers["/simple/thing/"] = (200, {"Content-Type": "text/html"}, body)
    (file,) = open_indexes(mirrors_to(index)).files("thing")
    assert (file.requires_python, file.yanked) == (">=3.12", True)


def test_a_folder_serves_as_an_index(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / NAME).write_bytes(wheel("thing", "1.0", ["numpy>=2"]))
    (tmp_path / "simple/thing").mkdir(parents=True)
    (tmp_path / "simple/thing/index.html").write_text(
        f'<a href="../../files/{NAME}#sha256={"0" * 64}">x</a>'
    )
    indexes = open_indexes(Mirrors(pip=PipMirrors(indexes=(f"file://{tmp_path}/simple",))))
    (file,) = indexes.files("thing")
    assert "Requires-Dist: numpy>=2" in indexes.metadata(file)
    assert indexes.size(file) == (tmp_path / "files" / NAME).stat().st_size
    assert indexes.files("unknown") == []


def test_metadata_comes_beside_the_wheel_where_the_index_serves_it(start_index: StartIndex) -> None:
    index = start_index()
    index.add("thing", NAME, b"not read", metadata=b"Name: thing\nRequires-Dist: six\n")
    indexes = open_indexes(mirrors_to(index))
    assert "Requires-Dist: six" in indexes.metadata(indexes.files("thing")[0])
    assert [path for _, path, _ in index.asked("/files/")] == [f"/files/thing/{NAME}.metadata"]


@pytest.mark.parametrize("ranges", [True, False])
def test_metadata_is_read_out_of_a_large_wheel_by_parts_or_whole(
    start_index: StartIndex, ranges: bool
) -> None:
    import os

    index = start_index(ranges=ranges)
    content = wheel(
        "thing", "1.0", ["six"], {"thing/big.so": os.urandom(3_000_000), "thing/include/a.h": b""}
    )
    index.add("thing", NAME, content)
    indexes = open_indexes(mirrors_to(index))
    file = indexes.files("thing")[0]
    assert "Requires-Dist: six" in indexes.metadata(file)
    assert "thing/include/a.h" in indexes.members(file)
    asked = [
        tuple(map(int, r.removeprefix("bytes=").split("-"))) for _, _, r in index.asked("/files/")
    ]
    if ranges:
        assert sum(last - first + 1 for first, last in asked) < 500_000


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((500, {}, b""), "it answered 500"),
        ((403, {}, b""), "it answered 403"),
        (
            (200, {"Content-Type": "application/vnd.pypi.simple.v1+json"}, b"{"),
            "its JSON page is not readable",
        ),
    ],
)
def test_an_index_that_answers_wrongly_is_an_error_and_not_an_empty_one(
    start_index: StartIndex, answer: tuple[int, dict[str, str], bytes], why: str
) -> None:
    index = start_index()
    index.answers["/simple/thing/"] = answer
    with pytest.raises(FetchError, match=why):
        open_indexes(mirrors_to(index, retries=0)).files("thing")
