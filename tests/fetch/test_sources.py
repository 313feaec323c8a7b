"""unpack_source: sdists without running them, git trees, checkouts; nothing leaves its folder."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from dih20.config.image import Source
from dih20.console import Console
from dih20.errors import FetchError, LockError
from dih20.fetch import fetch_files, unpack_source
from dih20.fetch.git_trees import fetch_git_sources
from dih20.fetch.sources import unpack_archive
from dih20.lock import Lock, LockedFile
from dih20.lock.files import LockedSource
from dih20.lock.source_pins import pin_source
from dih20.lock.tree_version import empty_submodules, tree_version
from tests.index.fixtures import StartIndex, mirrors_to
from tests.index.local_index import sdist


def git(folder: Path, *arguments: str) -> str:
    identity = {
        f"GIT_{who}_{what}": f"{who}@example.org"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    command = ["git", "-c", "protocol.file.allow=always", "-C", str(folder), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **identity}
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git repository with one commit that declares version 0.1.0."""
    folder = tmp_path / "upstream"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n')
    (folder / "engine.py").write_text("x = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def lock_with(source: LockedSource) -> Lock:
    return Lock(image="di-h20", sources={source.name: source})  # type: ignore[call-arg]  # the alias of `upstream`


def archive(tmp_path: Path, *members: tuple[str, str, bytes]) -> Path:
    """Write a tar from (kind, name, content or link target)."""
    path = tmp_path / "some.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for kind, name, content in members:
            info = tarfile.TarInfo(name)
            if kind == "file":
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
                continue
            info.type = {
                "symlink": tarfile.SYMTYPE,
                "hardlink": tarfile.LNKTYPE,
                "pipe": tarfile.FIFOTYPE,
            }[kind]
            info.linkname = content.decode()
            tar.addfile(info)
    return path


class TestSdist:
    def test_it_is_unpacked_below_the_folder_under_the_source_s_name(
        self, start_index: StartIndex, ui: Console, tmp_path: Path
    ) -> None:
        content = sdist(
            "deepinfer",
            "0.1.0",
            {"setup.py": "raise SystemExit('was run')", "deepinfer/a.py": "x = 1"},
        )
        start = start_index()
        start.add("deepinfer", "deepinfer-0.1.0.tar.gz", content)
        file = LockedFile(
            name="deepinfer",
            version="0.1.0",
            filename="deepinfer-0.1.0.tar.gz",
            sha256=hashlib.sha256(content).hexdigest(),
            size_bytes=len(content),
            kind="sdist",
        )
        fetch_files(ui, [file], mirrors_to(start))
        lock = lock_with(LockedSource(name="deepinfer", kind="sdist", version="0.1.0", file=file))
        tree = unpack_source("deepinfer", lock, tmp_path / "out")
        assert tree == tmp_path / "out" / "deepinfer"
        assert (tree / "deepinfer/a.py").read_text() == "x = 1"
        with pytest.raises(FetchError, match="exists"):
            unpack_source("deepinfer", lock, tmp_path / "out")

    @pytest.mark.parametrize(
        ("members", "why"),
        [
            ([("file", "../outside", b"x")], "leaves the folder"),
            ([("file", "/etc/outside", b"x")], "leaves the folder"),
            ([("file", "top/a/../../../outside", b"x")], "leaves the folder"),
            ([("symlink", "top/link", b"../../outside")], "leaves the folder"),
            ([("symlink", "top/link", b"/etc/passwd")], "leaves the folder"),
            ([("hardlink", "top/link", b"../outside")], "leaves the folder"),
            ([("pipe", "top/pipe", b"")], "device or pipe"),
            ([("file", "second/a", b"x")], "2 top folders"),
        ],
    )
    def test_an_archive_that_would_write_elsewhere_is_refused_and_nothing_is_written(
        self, tmp_path: Path, members: list[tuple[str, str, bytes]], why: str
    ) -> None:
        target = tmp_path / "out" / "tree"
        with pytest.raises(FetchError, match=why):
            unpack_archive(archive(tmp_path, ("file", "top/ok", b"x"), *members), target)
        assert not target.exists()

    def test_links_inside_the_tree_are_kept(self, tmp_path: Path) -> None:
        path = archive(
            tmp_path, ("file", "top/a/real", b"x"), ("symlink", "top/b/link", b"../a/real")
        )
        unpack_archive(path, tmp_path / "tree")
        assert (tmp_path / "tree/b/link").read_bytes() == b"x"


class TestCheckout:
    def test_its_version_is_declared_version_and_commit_and_says_when_files_differ(
        self, checkout: Path
    ) -> None:
        commit = git(checkout, "rev-parse", "HEAD")[:12]
        assert tree_version(checkout) == f"0.1.0+g{commit}"
        (checkout / "engine.py").write_text("x = 2\n")
        assert tree_version(checkout) == f"0.1.0+g{commit}.dirty"

    def test_another_owner_is_no_obstacle_and_trust_stays_with_that_folder(
        self, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = tmp_path / "home"
        home.mkdir()
        monkeypatch.setenv("HOME", str(home))
        for path in [checkout, *checkout.rglob("*")]:
            os.chown(path, 1000, 1000)
        refused = subprocess.run(
            ["git", "-C", str(checkout), "status"], capture_output=True, check=False
        )
        assert refused.returncode != 0, "git itself must refuse here, else this test shows nothing"
        assert tree_version(checkout).startswith("0.1.0+g")
        assert list(home.iterdir()) == []

    def test_a_tree_without_commit_or_version_is_an_error_and_never_blank(
        self, tmp_path: Path
    ) -> None:
        bare = tmp_path / "export"
        bare.mkdir()
        with pytest.raises(LockError, match="cannot determine commit or version"):
            tree_version(bare)
        git(bare, "init", "-q")
        with pytest.raises(LockError, match="cannot determine commit of"):
            tree_version(bare)

    def test_an_export_without_git_has_its_declared_version(self, tmp_path: Path) -> None:
        (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: x\nVersion: 2.8.2\n")
        assert tree_version(tmp_path) == "2.8.2"

    def test_each_empty_submodule_folder_is_named_also_below_another(self, tmp_path: Path) -> None:
        paths = ("vendor/DeepEP", "vendor/DeepGEMM", "vendor/DeepSelect")
        text = "".join(f'[submodule "{p}"]\n\tpath = {p}\n\turl = ../{p}\n' for p in paths)
        (tmp_path / ".gitmodules").write_text(text)
        for path in paths:
            (tmp_path / path).mkdir(parents=True)
        (tmp_path / "vendor/DeepGEMM/setup.py").write_text("")
        (tmp_path / "vendor/DeepGEMM/.gitmodules").write_text(
            '[submodule "c"]\n\tpath = third-party/cutlass\n'
        )
        (tmp_path / "PKG-INFO").write_text("Version: 1\n")
        wanted = ["vendor/DeepEP", "vendor/DeepGEMM/third-party/cutlass", "vendor/DeepSelect"]
        assert empty_submodules(tmp_path) == wanted
        with pytest.raises(LockError) as fault:
            pin_source("deepinfer", Source(path=str(tmp_path)), None)  # type: ignore[arg-type]  # a path asks no index
        for path in wanted:
            assert path in fault.value.found
        assert "submodule update --init --recursive" in fault.value.remedy

    def test_it_is_copied_without_its_git_folder_and_stays_untouched(
        self, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_image(monkeypatch, tmp_path, Source(path=str(checkout)))
        source = pin_source("deepinfer", Source(path=str(checkout)), None)  # type: ignore[arg-type]
        tree = unpack_source("deepinfer", lock_with(source), tmp_path / "out")
        assert sorted(p.name for p in tree.iterdir()) == ["engine.py", "pyproject.toml"]
        (tree / "engine.py").write_text("changed")
        assert (checkout / "engine.py").read_text() == "x = 1\n"


class TestGit:
    def test_a_commit_is_cloned_once_and_unpacked_from_the_cache(
        self, checkout: Path, tmp_path: Path, ui: Console, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit = git(checkout, "rev-parse", "HEAD")
        wanted = Source(git=str(checkout), commit=commit)
        image = use_image(monkeypatch, tmp_path, wanted)
        source = pin_source("deepinfer", wanted, None)  # type: ignore[arg-type]
        assert source.version == f"0+g{commit[:12]}"
        lock = lock_with(source)
        with pytest.raises(FetchError, match="not in the cache") as missing:
            unpack_source("deepinfer", lock, tmp_path / "before")
        assert missing.value.remedy == "run `./inv fetch --only sources`"
        fetch_git_sources(ui, lock, image)
        (checkout / "engine.py").write_text("moved on\n")
        git(checkout, "commit", "-q", "-a", "-m", "second")
        fetch_git_sources(ui, lock, image)
        assert ui.steps[-1].status == "hit"
        assert (
            unpack_source("deepinfer", lock, tmp_path / "out") / "engine.py"
        ).read_text() == "x = 1\n"

    def test_a_commit_that_is_not_there_is_named_and_leaves_nothing(
        self,
        checkout: Path,
        tmp_path: Path,
        ui: Console,
        cache: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        wanted = Source(git=str(checkout), commit="0" * 40)
        image = use_image(monkeypatch, tmp_path, wanted)
        source = pin_source("deepinfer", wanted, None)  # type: ignore[arg-type]
        with pytest.raises(FetchError, match="exited 128"):
            fetch_git_sources(ui, lock_with(source), image)
        assert not (cache / "git" / ("0" * 40)).exists()


def use_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: Source):  # type: ignore[no-untyped-def]
    """Put a configuration in force whose only source is this one; give it."""
    import yaml

    from dih20.config import load_image
    from dih20.paths import REPOSITORY

    values = yaml.safe_load((REPOSITORY / "configs/images/di-h20.yaml").read_text())
    values["sources"] = {"deepinfer": source.model_dump(exclude_none=True)}
    folder = tmp_path / "configs" / "images"
    folder.mkdir(parents=True)
    (folder / "di-h20.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.setenv("DI_CONFIGS", str(folder.parent))
    return load_image()
