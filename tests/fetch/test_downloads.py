"""fetch_files: what is asked of whom, resumed, verified, kept; and what is said when it fails."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dih20.config.mirrors import Mirrors, PipMirrors
from dih20.console import Console
from dih20.errors import FetchError, HashMismatch
from dih20.fetch import cached, fetch_files
from dih20.fetch.cache import is_cached, place
from dih20.lock import LockedFile
from dih20.lock.canonical import write
from dih20.paths import REPOSITORY
from tests.index.fixtures import StartIndex, mirrors_to, printed
from tests.index.local_index import LocalIndex
from tests.lock.locks import a_lock

DATA = bytes(range(256)) * 40_000  # 10 MB, so that a transfer can break in the middle


def pinned(project: str, filename: str, content: bytes) -> LockedFile:
    digest = hashlib.sha256(content).hexdigest()
    return LockedFile(
        name=project,
        version="1.0",
        filename=filename,
        sha256=digest,
        size_bytes=len(content),
        kind="wheel",
    )


def deb(path: str, content: bytes) -> LockedFile:
    digest = hashlib.sha256(content).hexdigest()
    return LockedFile(
        name="git",
        version="1",
        filename=path.rsplit("/", 1)[-1],
        sha256=digest,
        size_bytes=len(content),
        kind="deb",
        path=path,
        suite="trixie",
    )


@pytest.mark.parametrize("form", ["json", "html"])
def test_a_file_comes_through_either_form_of_page_and_lies_under_its_hash(
    start_index: StartIndex, ui: Console, cache: Path, form: str
) -> None:
    index = start_index(form=form)
    index.add("thing", "thing-1.0-py3-none-any.whl", b"content")
    file = pinned("thing", "thing-1.0-py3-none-any.whl", b"content")
    fetch_files(ui, [file], mirrors_to(index))
    assert cached(file).read_bytes() == b"content"
    assert cached(file).is_relative_to(cache / "files" / "sha256" / file.sha256[:2] / file.sha256)
    assert ui.steps[-1].status == "miss"


def test_a_second_fetch_asks_nothing(start_index: StartIndex, ui: Console) -> None:
    index = start_index()
    index.add("thing", "thing-1.0-py3-none-any.whl", b"content")
    file = pinned("thing", "thing-1.0-py3-none-any.whl", b"content")
    fetch_files(ui, [file], mirrors_to(index))
    index.log.clear()
    fetch_files(ui, [file], mirrors_to(index))
    assert index.log == []
    assert ui.steps[-1].status == "hit"


def test_a_download_that_broke_off_is_taken_up_where_it_stopped(
    start_index: StartIndex, ui: Console
) -> None:
    index = start_index()
    index.add("big", "big-1.0-py3-none-any.whl", DATA, breaks=1, breaks_after=4_000_000)
    file = pinned("big", "big-1.0-py3-none-any.whl", DATA)
    fetch_files(ui, [file], mirrors_to(index))
    assert cached(file).read_bytes() == DATA
    ranges = [r for _, _, r in index.asked("/files/")]
    assert ranges[0] == ""
    assert len(ranges) == 2
    assert int(ranges[1].removeprefix("bytes=").removesuffix("-")) > 1_000_000


def test_what_came_before_a_failed_run_is_not_asked_for_again_by_the_next(
    start_index: StartIndex, ui: Console
) -> None:
    index = start_index()
    served = index.add("big", "big-1.0-py3-none-any.whl", DATA, breaks=9, breaks_after=4_000_000)
    file = pinned("big", "big-1.0-py3-none-any.whl", DATA)
    with pytest.raises(FetchError, match="broken off 1 times"):
        fetch_files(ui, [file], mirrors_to(index, retries=0))
    served.breaks = 0
    fetch_files(ui, [file], mirrors_to(index))
    assert cached(file).read_bytes() == DATA
    assert index.asked("/files/")[-1][2].startswith("bytes=")


def test_a_server_without_range_gives_the_file_from_its_start(
    start_index: StartIndex, ui: Console
) -> None:
    index = start_index(ranges=False)
    index.add("big", "big-1.0-py3-none-any.whl", DATA, breaks=1, breaks_after=4_000_000)
    file = pinned("big", "big-1.0-py3-none-any.whl", DATA)
    fetch_files(ui, [file], mirrors_to(index))
    assert cached(file).read_bytes() == DATA


def test_a_bad_leftover_of_an_earlier_run_is_dropped_and_fetched_whole(
    start_index: StartIndex, ui: Console
) -> None:
    index = start_index()
    index.add("big", "big-1.0-py3-none-any.whl", DATA)
    file = pinned("big", "big-1.0-py3-none-any.whl", DATA)
    place(file).parent.mkdir(parents=True)
    (place(file).parent / f".{file.filename}.part").write_bytes(b"rubbish" * 1000)
    fetch_files(ui, [file], mirrors_to(index))
    assert cached(file).read_bytes() == DATA


def test_the_second_index_is_asked_when_the_first_lacks_the_package(
    start_index: StartIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = start_index(), start_index()
    first.add("other", "other-1.0-py3-none-any.whl", b"other")
    second.add("thing", "thing-1.0-py3-none-any.whl", b"content")
    file = pinned("thing", "thing-1.0-py3-none-any.whl", b"content")
    fetch_files(Console(), [file], mirrors_to(first, second))
    assert cached(file).read_bytes() == b"content"
    shown = printed(capsys)
    assert f"package indexes, from configs/mirrors.yaml: {first.url}, {second.url}" in shown


def test_a_package_that_no_index_has_is_named_with_each_index_that_lacks_it(
    start_index: StartIndex, ui: Console
) -> None:
    first, second = start_index(), start_index()
    second.add("thing", "thing-2.0-py3-none-any.whl", b"newer")
    file = pinned("thing", "thing-1.0-py3-none-any.whl", b"content")
    with pytest.raises(FetchError) as fault:
        fetch_files(ui, [file], mirrors_to(first, second))
    assert (
        f"thing-1.0-py3-none-any.whl cannot be had: index {first.url} has no project thing"
        in fault.value.found
    )
    assert f"index {second.url} has thing, but not this file" in fault.value.found
    assert fault.value.exit_code == 7


def test_an_index_that_is_not_declared_is_never_asked(start_index: StartIndex, ui: Console) -> None:
    declared, other = start_index(), start_index()
    other.add("thing", "thing-1.0-py3-none-any.whl", b"content")
    file = pinned("thing", "thing-1.0-py3-none-any.whl", b"content")
    with pytest.raises(FetchError):
        fetch_files(ui, [file], mirrors_to(declared))
    assert other.log == []


def test_content_that_is_not_the_locked_one_is_fatal_and_not_kept(
    start_index: StartIndex, ui: Console
) -> None:
    stale, fresh = start_index(), start_index()
    wanted = pinned("thing", "thing-1.0-py3-none-any.whl", b"content")
    stale.add("thing", wanted.filename, b"CONTENT", listed_sha256=wanted.sha256)
    fresh.add("thing", wanted.filename, b"content")
    with pytest.raises(HashMismatch) as fault:
        fetch_files(ui, [wanted], mirrors_to(stale, fresh))
    assert f"from index {stale.url}" in fault.value.found
    assert wanted.sha256 in fault.value.expected
    assert fault.value.exit_code == 8
    assert fresh.asked("/files/") == []
    assert not place(wanted).exists()
    assert [p.name for p in place(wanted).parent.iterdir()] == [".guard"]


def test_an_index_that_lists_another_hash_is_fatal_before_any_download(
    start_index: StartIndex, ui: Console
) -> None:
    index = start_index()
    index.add("thing", "thing-1.0-py3-none-any.whl", b"other content")
    with pytest.raises(HashMismatch, match="with sha256"):
        fetch_files(
            ui, [pinned("thing", "thing-1.0-py3-none-any.whl", b"content")], mirrors_to(index)
        )
    assert index.asked("/files/") == []


def test_all_files_that_fail_are_named_and_those_that_came_stay(
    start_index: StartIndex, ui: Console
) -> None:
    index = start_index()
    index.add("good", "good-1.0-py3-none-any.whl", b"good")
    good = pinned("good", "good-1.0-py3-none-any.whl", b"good")
    bad = [pinned(name, f"{name}-1.0-py3-none-any.whl", name.encode()) for name in ("lost", "gone")]
    with pytest.raises(FetchError, match="2 files failed") as fault:
        fetch_files(ui, [*bad, good], mirrors_to(index))
    assert "lost-1.0" in fault.value.found
    assert "gone-1.0" in fault.value.found
    assert is_cached(good)


def test_debs_come_by_their_pool_path_from_the_mirror_of_their_suite(
    start_index: StartIndex, ui: Console
) -> None:
    mirror = start_index(pool={"/debian/pool/main/g/git/git_1%2bdeb13u1_amd64.deb": b"deb"})
    file = deb("pool/main/g/git/git_1+deb13u1_amd64.deb", b"deb")
    mirror.pool["/debian/pool/main/g/git/git_1%2Bdeb13u1_amd64.deb"] = b"deb"
    fetch_files(ui, [file], Mirrors(apt={"trixie": (f"{mirror.root}/debian",)}))
    assert cached(file).name == "git_1+deb13u1_amd64.deb"


def test_a_mirror_that_dropped_a_package_leads_to_the_command_that_locks_anew(
    start_index: StartIndex, ui: Console
) -> None:
    empty = start_index()
    with pytest.raises(FetchError) as fault:
        fetch_files(
            ui, [deb("pool/g/git_1.deb", b"deb")], Mirrors(apt={"trixie": (empty.root,)}, retries=0)
        )
    assert f"mirror {empty.root}: it answered 404" in fault.value.found
    assert "./inv lock --upgrade --only base,apt,ci --base BASE" in fault.value.remedy


def test_a_mirror_with_stale_content_is_fatal(start_index: StartIndex, ui: Console) -> None:
    stale = start_index(pool={"/pool/git_1.deb": b"old"})
    with pytest.raises(HashMismatch, match=f"mirror {stale.root}: sha256"):
        fetch_files(
            ui, [deb("pool/git_1.deb", b"new")], Mirrors(apt={"trixie": (stale.root,)}, retries=0)
        )


def test_an_index_that_does_not_answer_is_named(ui: Console) -> None:
    nobody = Mirrors(pip=PipMirrors(indexes=("http://127.0.0.1:9/simple",)), retries=0, timeout_s=2)
    with pytest.raises(FetchError) as fault:
        fetch_files(ui, [pinned("thing", "thing-1.0-py3-none-any.whl", b"x")], nobody)
    assert "index http://127.0.0.1:9/simple, page thing" in fault.value.found
    assert "Traceback" not in str(fault.value)


def test_a_password_in_an_index_address_is_not_shown(start_index: StartIndex, ui: Console) -> None:
    index = start_index()
    secret = f"http://someone:hunter2@127.0.0.1:{index.port}/simple"
    with pytest.raises(FetchError) as fault:
        fetch_files(
            ui,
            [pinned("thing", "thing-1.0-py3-none-any.whl", b"x")],
            Mirrors(pip=PipMirrors(indexes=(secret,))),
        )
    assert "hunter2" not in str(fault.value)
    assert "***@127.0.0.1" in fault.value.found


def test_a_proxy_is_used_for_every_request(start_index: StartIndex, ui: Console) -> None:
    proxy = start_index()  # answers for any host, as a proxy does
    proxy.add("thing", "thing-1.0-py3-none-any.whl", b"content")
    file = pinned("thing", "thing-1.0-py3-none-any.whl", b"content")
    through = Mirrors(pip=PipMirrors(indexes=("http://index.invalid/simple",)), proxy=proxy.root)
    fetch_files(ui, [file], through)
    assert cached(file).read_bytes() == b"content"


def test_two_fetches_at_once_leave_one_whole_file(start_index: StartIndex, cache: Path) -> None:
    index = start_index()
    index.add("big", "big-1.0-py3-none-any.whl", DATA)
    file = pinned("big", "big-1.0-py3-none-any.whl", DATA)
    code = (
        "import sys\n"
        "from dih20.console import Console\n"
        "from dih20.fetch import cached, fetch_files\n"
        "from dih20.config.mirrors import Mirrors, PipMirrors\n"
        "from dih20.lock import LockedFile\n"
        "file = LockedFile.model_validate_json(sys.argv[1])\n"
        "fetch_files(Console(), [file], Mirrors(pip=PipMirrors(indexes=(sys.argv[2],))))\n"
        "cached(file)\n"
    )
    command = [sys.executable, "-c", code, file.model_dump_json(), index.url]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert cached(file).read_bytes() == DATA
    assert len([r for r in index.asked("/files/") if r[0] == "GET"]) == 1


def _take_interrupts() -> None:
    """A shell starts background jobs with interrupts ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupt_ends_the_run_soon_and_keeps_what_has_come(
    start_index: StartIndex, tmp_path: Path
) -> None:
    index = start_index()
    index.add("big", "big-1.0-py3-none-any.whl", DATA, trickles=True)
    file = pinned("big", "big-1.0-py3-none-any.whl", DATA)
    write(a_lock(python={"cp313": (file,)}), tmp_path / "di.lock.yaml")
    (tmp_path / "mirrors.yaml").write_text(f"pip:\n  indexes: [{index.url}]\n")
    (tmp_path / "images").symlink_to(REPOSITORY / "configs/images")
    command = [sys.executable, "-m", "invoke", "--search-root", str(REPOSITORY), "fetch"]
    command += ["--base", "stand-in", "--only", "requirements"]
    settings = {"DI_LOCK": str(tmp_path / "di.lock.yaml"), "DI_CONFIGS": str(tmp_path)}
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **settings},
        preexec_fn=_take_interrupts,
    ) as run:
        partial = place(file).parent / f".{file.filename}.part"
        deadline = time.monotonic() + 30
        while not (partial.exists() and partial.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        asked = time.monotonic()
        run.send_signal(signal.SIGINT)
        assert run.wait(20) == 130
    assert time.monotonic() - asked < 8
    assert 0 < partial.stat().st_size < len(DATA)
    assert not place(file).exists()


class TestCached:
    def test_a_missing_file_names_the_command_that_fetches_it(self) -> None:
        with pytest.raises(FetchError) as fault:
            cached(pinned("thing", "thing-1.0-py3-none-any.whl", b"content"))
        assert fault.value.remedy == "run `./inv fetch`"

    def test_a_file_that_changed_in_the_cache_is_refused_and_fetched_again(
        self, start_index: StartIndex, ui: Console
    ) -> None:
        index: LocalIndex = start_index()
        index.add("thing", "thing-1.0-py3-none-any.whl", b"content")
        file = pinned("thing", "thing-1.0-py3-none-any.whl", b"content")
        fetch_files(ui, [file], mirrors_to(index))
        cached(file).write_bytes(b"CONTENT")
        with pytest.raises(HashMismatch):
            cached(file)
        fetch_files(ui, [file], mirrors_to(index))
        assert cached(file).read_bytes() == b"content"
