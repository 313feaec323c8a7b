"""A second process that needs what a first one holds says so, once, and then gets its turn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dih20.file_guard import only_holder

HOLDER = """
import sys
from pathlib import Path
from dih20.file_guard import only_holder
with only_holder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_says_which_file_it_waits_for_and_who_holds_it(tmp_path: Path) -> None:
    guard = tmp_path / "folder" / "x.guard"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(guard)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == "held\n"
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        assert holder.stdin is not None
        holder.stdin.close()  # only then does the holder let go

    with only_holder(guard, say):
        assert said == [f"  waiting for {guard}, held by process {holder.pid} ..."]
    assert holder.wait(30) == 0


def test_who_need_not_wait_says_nothing_and_leaves_no_number(tmp_path: Path) -> None:
    guard = tmp_path / "x.guard"
    said: list[str] = []
    for _ in range(2):
        with only_holder(guard, said.append):
            pass
    assert said == []
    assert guard.read_text() == ""
