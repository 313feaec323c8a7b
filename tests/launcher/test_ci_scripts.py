""".ci/run and ci/host-setup.sh with stand-ins for what they call."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dih20.paths import REPOSITORY
from dih20.rehearse.host_packages import NEEDED
from tests.serve.browser import PROGRAMS

Run = Callable[..., subprocess.CompletedProcess[str]]


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("lint", "test", "code"), [(0, 0, 0), (61, 0, 61), (0, 7, 7), (61, 7, 61)])
def test_ci_runs_every_part_and_exits_as_the_first_that_failed(
    lint: int, test: int, code: int, tmp_path: Path, run_clean: Run
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy2(REPOSITORY / ".ci/run", tmp_path / ".ci/run")
    script(tmp_path / "ci/host-setup.sh", "echo set up")
    script(
        tmp_path / "inv",
        f'read -r line && echo "stdin is open"; case $1 in lint) exit {lint};; test) echo "3 passed in 0.1s"; exit {test};; esac',
    )
    done = run_clean("bash", ".ci/run", cwd=tmp_path, env={"CI": "true"})
    assert done.returncode == code
    assert "3 passed in 0.1s" in done.stdout
    assert "stdin is open" not in done.stdout
    for part, result in (("ci/host-setup.sh", 0), ("./inv lint", lint), ("./inv test", test)):
        assert re.search(
            rf"^ci: {re.escape(part)} exited {result} after \d+ s$", done.stdout, re.MULTILINE
        )


def test_ci_stops_when_the_machine_cannot_be_set_up(tmp_path: Path, run_clean: Run) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy2(REPOSITORY / ".ci/run", tmp_path / ".ci/run")
    script(tmp_path / "ci/host-setup.sh", "exit 2")
    script(tmp_path / "inv", "echo ran")
    done = run_clean("bash", ".ci/run", cwd=tmp_path)
    assert done.returncode == 2
    assert "ran\n" not in done.stdout


def test_host_setup_without_root_names_the_packages_in_one_line(
    tmp_path: Path, run_clean: Run
) -> None:
    programs = tmp_path / "programs"
    script(programs / "id", "echo 1000")
    for name in ("basename", "readlink", "python3"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    bash = shutil.which("bash") or ""
    setup = str(REPOSITORY / "ci/host-setup.sh")
    done = run_clean(bash, setup, env={"PATH": str(programs)})
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(
        r"host-setup: missing .*\bzstd\b.*git.*; this needs root and apt-get .*\n", done.stderr
    )


@pytest.mark.parametrize("browser", PROGRAMS)
def test_host_setup_has_nothing_to_do_where_all_is_there(
    browser: str, tmp_path: Path, run_clean: Run
) -> None:
    programs = tmp_path / "programs"
    needed = f"dockerd sshd ssh-keygen debootstrap zstd git {browser} apt-get"
    for name in needed.split():
        script(programs / name, "echo called; exit 1")
    script(programs / "python3", "exit 0")
    bash = shutil.which("bash") or ""
    done = run_clean(bash, str(REPOSITORY / "ci/host-setup.sh"), env={"PATH": str(programs)})
    assert (done.returncode, done.stdout) == (0, "host-setup: nothing missing\n")


def test_host_setup_and_the_readmes_name_the_packages_that_tasks_install() -> None:
    packages = [entry.package for entry in NEEDED]
    setup = (REPOSITORY / "ci/host-setup.sh").read_text()
    (line,) = re.findall(r'^needed="(.+)"$', setup, re.MULTILINE)
    ours = [f"{entry.program}:{entry.package}" for entry in NEEDED]
    assert line.split() == [*ours, f"{','.join(PROGRAMS)}:chromium"]
    for name, pattern in (("README.md", r"\((docker\.io,[^)]*)\)"), ("README.zh-CN.md", r"（(docker\.io、[^）]*)）")):  # fmt: skip
        (listed,) = re.findall(pattern, (REPOSITORY / name).read_text())
        assert re.split(r"[,、]\s*", listed) == packages, name
