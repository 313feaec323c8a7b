"""A user's Dockerfile is built as it says, or refused naming line and feature (F13, F19)."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import ImageError, UsageError
from dih20.image.dockerfile_features import buildkit_features
from dih20.image.ignore_file import is_left_out, parse
from dih20.image.user_dockerfile import build, make_plan, write_context

RENDERED = """\
FROM debian:trixie
# a comment with RUN --mount=type=cache
RUN apt-get update \\
    && apt-get install -y git
RUN --mount=type=cache,target=/var/cache/pip \\
    pip install x
"""


@pytest.mark.parametrize(
    ("line", "feature"),
    [
        ("RUN --mount=type=cache,target=/c true", "RUN --mount"),
        ("RUN --network=none true", "RUN --network"),
        ("COPY --link a b", "COPY --link"),
        ("COPY --chmod=755 a b", "COPY --chmod"),
        ("copy --chown=1:1 --chmod=755 a b", "COPY --chmod"),
        ("ADD --checksum=sha256:0 a b", "ADD --checksum"),
        ("ONBUILD RUN --mount=type=cache,target=/c true", "RUN --mount"),
        ("onbuild copy --link a b", "COPY --link"),
        ("RUN\t--mount=type=cache,target=/c true", "RUN --mount"),
        ("RUN <<EOF\necho hi\nEOF", "heredoc"),
        ('COPY <<"END" /etc/file\nx\nEND', "heredoc"),
    ],
)
def test_a_feature_of_buildkit_is_named_with_its_line(line: str, feature: str) -> None:
    found = buildkit_features(f"FROM x\n\n{line}\n")
    assert [(f.line, f.name) for f in found] == [(3, feature)]


def test_a_syntax_line_counts_only_where_the_builder_reads_it() -> None:
    assert [
        (f.line, f.name) for f in buildkit_features("# syntax=docker/dockerfile:1\nFROM x\n")
    ] == [(1, "# syntax")]
    assert buildkit_features("FROM x\n# syntax=docker/dockerfile:1\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "RUN pip install --mount x",
        "COPY --chown=1:1 a b",
        "COPY --from=stage a b",
        "RUN cat <<<word",
        "RUN echo '--mount=type=cache'",
        "# RUN --mount=type=cache",
        "ONBUILD",
    ],
)
def test_what_the_classic_builder_understands_is_not_refused(line: str) -> None:
    assert buildkit_features(f"FROM x\n{line}\n") == []


def test_a_dockerfile_with_a_cache_mount_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(RENDERED)
    with pytest.raises(ImageError) as caught:
        make_plan(path, "x:1")
    assert f"{path}:5: RUN --mount" in caught.value.found
    assert "docker buildx build" in caught.value.remedy


def test_a_missing_dockerfile_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        make_plan(tmp_path / "nowhere", "x:1")


@pytest.mark.parametrize(
    ("path", "left_out"),
    [
        ("data", True),
        ("data/a/b.bin", True),
        ("data/keep.txt", False),
        ("src/main.py", False),
        ("src/main.pyc", True),
        ("deep/er/x.pyc", True),
        ("note.md", True),
        ("README.md", False),
        ("docs/note.md", False),
        ("build1", True),
        ("build12", False),
        ("file[1]", False),
    ],
)
def test_ignore_patterns_mean_what_docker_says_they_mean(path: str, left_out: bool) -> None:
    patterns = parse(
        "# comment\n\n/data\n!data/keep.txt\n**/*.pyc\n*.md\n!README.md\nbuild?\n  spaced  \nfile1\n"
    )
    assert is_left_out(path, patterns) is left_out


@pytest.mark.parametrize("pattern", ["[z-a]", "[]a]", "!x/[^]b]"])
def test_an_ignore_pattern_that_cannot_be_read_is_named_with_file_and_line(
    tmp_path: Path, pattern: str
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x\n")
    (tmp_path / ".dockerignore").write_text(f"data\n{pattern}\n")
    with pytest.raises(UsageError) as caught:
        write_context(tmp_path / "Dockerfile", io.BytesIO())
    assert f".dockerignore:2: {pattern!r}" in caught.value.found


def names_in(path: Path) -> list[str]:
    raw = io.BytesIO()
    write_context(path, raw)
    raw.seek(0)
    with tarfile.open(fileobj=raw) as tar:
        return tar.getnames()


def test_the_dockerfile_is_sent_even_when_everything_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x\n")
    (tmp_path / "other").write_text("x")
    (tmp_path / ".dockerignore").write_text("*\n")
    assert names_in(tmp_path / "Dockerfile") == ["Dockerfile"]


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: making many files is not what is measured."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


def test_fifty_thousand_ignored_files_cost_little_and_are_not_sent(quick_folder: Path) -> None:
    data = quick_folder / "data"
    for folder in range(100):
        (data / f"{folder:02}").mkdir(parents=True)
        for number in range(500):
            os.close(os.open(data / f"{folder:02}" / f"{number}", os.O_CREAT | os.O_WRONLY))
    (data / "42" / "keep.txt").write_text("kept")
    (quick_folder / ".dockerignore").write_text("data\n!data/42/keep.txt\n")
    (quick_folder / "Dockerfile").write_text("FROM x\n")
    raw = io.BytesIO()
    started = time.monotonic()
    count = write_context(quick_folder / "Dockerfile", raw)
    assert time.monotonic() - started < 10
    assert len(raw.getvalue()) < 1 << 20
    assert count == 3
    assert "data/42/keep.txt" in names_in(quick_folder / "Dockerfile")


def test_a_touched_file_gives_the_same_context(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x\n")
    (tmp_path / "a").write_text("a")
    first, second = io.BytesIO(), io.BytesIO()
    write_context(tmp_path / "Dockerfile", first)
    os.utime(tmp_path / "a", (1, 1))
    write_context(tmp_path / "Dockerfile", second)
    assert first.getvalue() == second.getvalue()


@pytest.fixture
def project(tmp_path: Path, standin_image: str) -> Path:
    folder = tmp_path / "project"
    (folder / "patches").mkdir(parents=True)
    (folder / "patches" / "one.patch").write_text("1\n")
    (folder / "data").mkdir()
    (folder / "data" / "ignored").write_text("x")
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / ".dockerignore").write_text("data\n")
    (folder / "Dockerfile").write_text(
        f"FROM {standin_image}\nRUN echo base > /base\nCOPY tool /tool\nCOPY patches /patches\nRUN cat /patches/*\n"
    )
    return folder / "Dockerfile"


@pytest.mark.docker
def test_touching_is_all_hits_and_a_changed_patch_rebuilds_from_there_on(
    engine: Any, project: Path
) -> None:
    ui = Console(as_json=True)
    build(ui, engine, project, tag="di-user:test")
    for path in (project.parent / "data" / "ignored", project.parent / "tool", project):
        os.utime(path, (1, 1))
    (project.parent / "data" / "new").write_text("also ignored")
    touched = build(ui, engine, project, tag="di-user:test")
    assert [step["hit"] for step in touched["steps"][1:]] == [True, True, True, True]

    (project.parent / "patches" / "one.patch").write_text("2\n")
    changed = build(ui, engine, project, tag="di-user:test")
    assert [step["hit"] for step in changed["steps"][1:]] == [True, True, False, False]
    assert "2 hits" in ui.steps[-1].note or "hits" in ui.steps[-1].note
    engine.images.remove("di-user:test", force=True)


@pytest.mark.docker
def test_a_failing_instruction_is_named_with_the_compilers_line_and_leaves_no_container(
    engine: Any, project: Path, own_build_folder: Path
) -> None:
    before = len(engine.containers.list(all=True))
    with project.open("a") as out:
        out.write(
            "RUN i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; echo '#include <no.h>' | g++ -xc++ -c -\n"
        )
    with pytest.raises(ImageError) as caught:
        build(Console(as_json=True), engine, project, tag="di-user:broken")
    assert "step 6" in caught.value.found
    assert "fatal error: no.h: No such file or directory" in caught.value.found
    assert "line 2999" in (own_build_folder / "logs" / "dockerfile-di-user-broken.log").read_text()
    assert len(engine.containers.list(all=True)) == before
