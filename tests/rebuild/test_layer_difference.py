"""Of two tars, the member that differs is named, with the kind of difference and its bytes."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from dih20.rebuild.layer_difference import MemberDifference, differences


def tar(*members: Entry) -> io.BytesIO:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as out:
        for name, content, facts in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in facts.items():
                setattr(info, key, value)
            out.addfile(info, io.BytesIO(content))
    raw.seek(0)
    return raw


def found(first: io.BytesIO, second: io.BytesIO) -> list[tuple[str, str]]:
    return [(d.member, d.kind) for d in differences(first, second)]


Entry = tuple[str, bytes, dict[str, Any]]
PLAIN: Entry = ("a", b"0123456789", {})


def test_equal_tars_differ_in_nothing() -> None:
    assert found(tar(PLAIN), tar(PLAIN)) == []


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"mode": 0o700}, "mode"),
        ({"uid": 5}, "owner"),
        ({"mtime": 7}, "mtime"),
        ({"pax_headers": {"SCHILY.xattr.user.x": "y"}}, "attributes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_changed_fact_is_named_by_its_kind(facts: dict[str, Any], kind: str) -> None:
    assert found(tar(PLAIN), tar(("a", b"0123456789", facts))) == [("a", kind)]


def test_changed_bytes_are_named_from_the_first_to_the_last_across_blocks() -> None:
    size = (2 << 20) + 10
    first, second = bytearray(size), bytearray(size)
    second[100] = second[size - 3] = 1
    (difference,) = differences(tar(("a", bytes(first), {})), tar(("a", bytes(second), {})))
    assert (difference.kind, difference.bytes) == ("content", (100, size - 3))
    assert "a: content at bytes 100-" in difference.text


def test_a_longer_file_differs_from_where_the_shorter_ends() -> None:
    (difference,) = differences(tar(PLAIN), tar(("a", b"0123456789ab", {})))
    assert difference.bytes == (10, 11)
    assert "10 and 12 bytes long" in difference.second


def test_a_missing_member_a_link_elsewhere_and_a_file_that_became_a_link_are_told_apart() -> None:
    link: dict[str, Any] = {"type": tarfile.SYMTYPE, "linkname": "x"}
    other = {**link, "linkname": "y"}
    first = tar(("a", b"", {}), ("b", b"", link), ("c", b"", {}))
    second = tar(("b", b"", other), ("c", b"", link))
    assert found(first, second) == [("a", "missing"), ("b", "link"), ("c", "kind")]


def test_an_order_alone_is_named() -> None:
    other: Entry = ("b", b"", {})
    assert list(differences(tar(PLAIN, other), tar(other, PLAIN))) == [
        MemberDifference(member="a", kind="order", first="member 0", second="member 1")
    ]
