"""The same files are the same layer, however they were made and read; what is not the image's stays out."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dih20.errors import ImageError
from dih20.image.archive.leftovers import rewritten
from dih20.image.archive.normal_layer import NormalLayer
from dih20.image.archive.raw_layer import FolderLayer, TarLayer
from dih20.image.archive.tar_header import FILE, FOLDER, Member, header
from dih20.source_date import SOURCE_DATE_EPOCH

Entry = tuple[str, bytes, dict[str, Any]]


def tar(*entries: Entry, **options: Any) -> io.BytesIO:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", **options) as out:
        for name, content, facts in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mtime = 1_799_999_999
            for key, value in facts.items():
                setattr(info, key, value)
            out.addfile(info, io.BytesIO(content))
    raw.seek(0)
    return raw


def normal(*entries: Entry, **options: Any) -> tuple[dict[str, tarfile.TarInfo], NormalLayer]:
    layer = NormalLayer(TarLayer(tar(*entries, **options)))
    return members(written(layer)), layer


def written(layer: NormalLayer) -> bytes:
    text = b"".join(layer.chunks())
    assert len(text) == layer.size_bytes, "the size said beforehand is the size written"
    return text


def members(text: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(text)) as read:
        return {member.name: member for member in read.getmembers()}


def content(text: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(text)) as read:
        file = read.extractfile(name)
        assert file is not None
        return file.read()


def file(name: str, text: bytes = b"x", **facts: Any) -> Entry:
    return name, text, facts


def folder(name: str, **facts: Any) -> Entry:
    return name, b"", {"type": tarfile.DIRTYPE, "mode": 0o755, **facts}


def link(name: str, target: str, kind: bytes = tarfile.LNKTYPE) -> Entry:
    return name, b"", {"type": kind, "linkname": target}


def test_order_time_owner_names_and_header_format_of_the_raw_layer_do_not_matter() -> None:
    one = (folder("a"), file("a/x", b"1"), file("b" * 120, b"2"))
    other = tuple(
        (name, text, {**facts, "mtime": 5.25, "uname": "builder", "gname": "docker"})
        for name, text, facts in reversed(one)
    )
    first = written(NormalLayer(TarLayer(tar(*one, format=tarfile.GNU_FORMAT))))
    second = written(NormalLayer(TarLayer(tar(*other, format=tarfile.PAX_FORMAT))))
    assert first == second
    assert {member.mtime for member in members(first).values()} == {SOURCE_DATE_EPOCH}
    assert list(members(first)) == ["a", "a/x", "b" * 120]


@pytest.mark.parametrize(
    "change",
    [
        {"mode": 0o600},
        {"uid": 7},
        {"gid": 7},
        {"linkname": "b", "type": tarfile.SYMTYPE, "size": 0},
        {"type": tarfile.FIFOTYPE, "size": 0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_a_file_is_does_matter(change: dict[str, Any]) -> None:
    plain = written(NormalLayer(TarLayer(tar(file("a")))))
    assert written(NormalLayer(TarLayer(tar(file("a", **change))))) != plain


def test_the_bytes_are_those_written_down_here() -> None:
    # Another digest means other image ids everywhere: raise FORMAT in normal_layer.py with it.
    layer = NormalLayer(
        TarLayer(tar(folder("d"), file("d/f", b"text", mode=0o640, uid=3), link("d/g", "d/f")))
    )
    written(layer)
    assert layer.diff_id == (
        "sha256:4cf8f938d7067a3f86a0b10b46d09cdc8c8922b4218b0db6987a5e177c251681"
    )


def test_long_names_large_numbers_and_names_that_are_no_text_survive() -> None:
    name = "p" * 90 + "/" + "q" * 300
    odd = os.fsdecode(b"caf\xe9\xff")
    found, _ = normal(
        file(name, b"1", uid=3_000_000, gid=4_000_000),
        file(odd, b"2"),
        ("s", b"", {"type": tarfile.SYMTYPE, "linkname": "t" * 150}),
    )
    assert found[name].uid == 3_000_000
    assert found[name].gid == 4_000_000
    assert found["s"].linkname == "t" * 150
    assert odd in found


def test_a_file_over_eight_gigabytes_gets_its_size_in_a_record() -> None:
    size = 9 << 30
    with tarfile.open(
        fileobj=io.BytesIO(header(Member(name=b"big", kind=FILE, size=size), 0)), mode="r|"
    ) as read:
        member = read.next()
    assert member is not None
    assert member.size == size


def test_capabilities_stay_and_other_attributes_go() -> None:
    pax = {
        "SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x20",
        "SCHILY.xattr.user.note": "here",
        "atime": "1.5",
    }
    found, _ = normal(file("ping", pax_headers=pax), format=tarfile.PAX_FORMAT)
    assert found["ping"].pax_headers == {"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x20"}


def test_hard_links_keep_sharing_one_content_with_the_first_name() -> None:
    one, _ = normal(file("z", b"text", mode=0o711), link("a", "z"), link("m", "z"))
    other, _ = normal(file("a", b"text", mode=0o711), link("m", "a"), link("z", "a"))
    assert [(m.name, m.type, m.linkname, m.mode) for m in one.values()] == [
        ("a", tarfile.REGTYPE, "", 0o711),
        ("m", tarfile.LNKTYPE, "a", 0o711),
        ("z", tarfile.LNKTYPE, "a", 0o711),
    ]
    assert [m.tobuf() for m in one.values()] == [m.tobuf() for m in other.values()]


def test_a_content_that_only_a_left_out_file_held_is_kept_under_the_name_that_stays() -> None:
    layer = NormalLayer(TarLayer(tar(file("tmp/x", b"text"), link("opt/y", "tmp/x"))))
    text = written(layer)
    assert list(members(text)) == ["opt/y"]
    assert content(text, "opt/y") == b"text"


def test_a_hard_link_out_of_the_layer_is_refused() -> None:
    with pytest.raises(ImageError, match="opt/y is a hard link to usr/x"):
        NormalLayer(TarLayer(tar(link("opt/y", "usr/x"))))


def test_a_name_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ImageError, match="occurs twice"):
        NormalLayer(TarLayer(tar(file("a", b"1"), file("a", b"2"))))


LEFT_OUT = (
    "tmp/scratch", "tmp/deep/er", "var/tmp/x", "run/lock/x", "root/.cache/pip/http/x", "var/log/dpkg.log",
    "var/log/apt/term.log", "var/cache/ldconfig/aux-cache", "var/cache/debconf/config.dat",
    "var/cache/apt/pkgcache.bin", "var/lib/apt/lists/deb_Packages", "var/lib/dpkg/status-old",
    "var/lib/dpkg/lock", "etc/passwd-", "etc/machine-id", "etc/ssh/ssh_host_rsa_key.pub",
    "root/.python_history", ".dockerenv", "usr/lib/python3/__pycache__/a.cpython-313.pyc",
    "usr/share/info/dir.old",
)  # fmt: skip
KEPT = (
    "tmp", "var/log", "etc/passwd", "etc/ld.so.cache", "var/lib/dpkg/status", "opt/plugin.pyc",
    "var/lib/dpkg/info/git.list", "root/.profile", "etc/ssh/sshd_config", "opt/tmp/x", "opt/var/log/x",
)  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_trace_of_the_build_is_left_out(name: str) -> None:
    found, layer = normal(file(name), file("opt/kept"))
    assert list(found) == ["opt/kept"]
    assert layer.left_out == 1


@pytest.mark.parametrize("name", KEPT)
def test_what_belongs_to_the_image_stays(name: str) -> None:
    assert list(normal(file(name))[0]) == [name]


def test_a_whiteout_stays_wherever_it_is() -> None:
    names = ["tmp/.wh.x", "usr/lib/__pycache__/.wh.a.cpython-313.pyc", "etc/.wh..wh..opq"]
    found, _ = normal(*(file(name, b"", mode=0o600, uid=5) for name in names))
    assert sorted(found) == sorted(names)
    assert {(m.size, m.mode, m.uid) for m in found.values()} == {(0, 0, 0)}


def test_a_byte_code_folder_goes_with_its_byte_code_but_not_with_anything_else_in_it() -> None:
    gone, other = "a/__pycache__", "b/__pycache__"
    found, _ = normal(
        folder(gone), file(f"{gone}/x.cpython-312.pyc"), folder(other), file(f"{other}/README")
    )
    assert list(found) == [other, f"{other}/README"]


def test_the_day_of_a_password_change_is_fixed() -> None:
    text = b"root:*:19000:0:99999:7:::\ntidy:!:20786::::::\nodd\n"
    day = str(SOURCE_DATE_EPOCH // 86400).encode()
    assert rewritten(text) == b"root:*:%b:0:99999:7:::\ntidy:!:%b::::::\nodd\n" % (day, day)
    layer = NormalLayer(TarLayer(tar(file("etc/shadow", text))))
    assert content(written(layer), "etc/shadow") == rewritten(text)


def test_a_layer_of_leftovers_alone_is_empty() -> None:
    assert NormalLayer(TarLayer(tar(file("tmp/x")))).is_empty


def test_a_folder_and_a_tar_of_the_same_layer_are_the_same_bytes(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.fail("needs root, as the engine's folders do")
    (tmp_path / "etc" / "sub").mkdir(parents=True)
    (tmp_path / "etc" / "conf").write_bytes(b"text")
    (tmp_path / "etc" / "conf").chmod(0o640)
    os.link(tmp_path / "etc" / "conf", tmp_path / "etc" / "again")
    (tmp_path / "etc" / "soft").symlink_to("conf")
    os.mkfifo(tmp_path / "etc" / "pipe", 0o600)
    os.mknod(tmp_path / "etc" / "gone", stat.S_IFCHR, os.makedev(0, 0))
    os.mknod(tmp_path / "etc" / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.chmod(tmp_path / "etc" / "null", 0o666)  # noqa: PTH101 - a device, past the umask
    os.setxattr(tmp_path / "etc" / "sub", "trusted.overlay.opaque", b"y")
    here = [folder("etc", mode=(tmp_path / "etc").stat().st_mode & 0o7777)]
    here += [file("etc/again", b"text", mode=0o640), link("etc/conf", "etc/again")]
    here += [file("etc/.wh.gone", b"", mode=0o600)]
    device = {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3, "mode": 0o666}
    here += [
        ("etc/null", b"", device),
        ("etc/pipe", b"", {"type": tarfile.FIFOTYPE, "mode": 0o600}),
    ]
    here += [("etc/soft", b"", {"type": tarfile.SYMTYPE, "linkname": "conf", "mode": 0o777})]
    here += [folder("etc/sub", mode=(tmp_path / "etc" / "sub").stat().st_mode & 0o7777)]
    here += [file("etc/sub/.wh..wh..opq", b"")]
    assert written(NormalLayer(FolderLayer(tmp_path))) == written(NormalLayer(TarLayer(tar(*here))))


def test_a_normal_layer_is_its_own_normal_form() -> None:
    first = written(NormalLayer(TarLayer(tar(folder("a"), file("a/f"), link("a/g", "a/f")))))
    assert written(NormalLayer(TarLayer(io.BytesIO(first)))) == first


def test_a_folders_name_ends_with_a_slash_only_in_the_tar() -> None:
    assert header(Member(name=b"a", kind=FOLDER), 0)[:2] == b"a/"
