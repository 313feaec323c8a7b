"""The project's edits on the real upstream tree."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dih20.errors import PatchError
from dih20.lock import Lock
from dih20.patches.applying import apply_all
from dih20.patches.edits.applying import undo_edits
from dih20.patches.edits.code_files import read_code
from dih20.patches.edits.model import Edit, read_edit
from dih20.patches.edits.symbols import parse
from dih20.patches.evaluate import Evaluation
from dih20.patches.resulting_diff import resulting_diff
from dih20.patches.series import Patch, load
from dih20.patches.tree import Tree, tree_hash
from dih20.paths import REPOSITORY
from tests.patches.edits.interpreters import new_enough_python
from tests.patches.upstream_tree import EDITS, lay

IDS = [path.name for path in sorted(EDITS.glob("P*"))]


def edits() -> list[Edit]:
    return [read_edit(EDITS / name) for name in IDS]


def test_every_edit_applies_to_the_locked_release(upstream: Path, series: list[Patch]) -> None:
    _, outcomes = lay(upstream, *series)
    assert {o.patch.name: (o.state, o.note) for o in outcomes} == {
        patch.name: ("applied", "") for patch in series
    }


def test_applying_twice_changes_nothing_and_undoing_gives_the_bytes_back(
    upstream: Path, series: list[Patch], copy_of: Path
) -> None:
    before = tree_hash(Tree(copy_of))
    tree, _ = lay(copy_of, *series)
    tree.write()
    patched = tree_hash(Tree(copy_of))
    again, outcomes = lay(copy_of, *series)
    assert {o.state for o in outcomes} == {"already"}
    assert again.changes == {}
    undone = undo_edits(again)
    again.write()
    assert tree_hash(Tree(copy_of)) == before != patched
    assert undone == sorted({change.file for edit in edits() for change in edit.changes})


def test_the_result_does_not_depend_on_order_or_on_the_process(
    upstream: Path, series: list[Patch]
) -> None:
    forward, _ = lay(upstream, *series)
    backward, _ = lay(upstream, *reversed(series))
    assert resulting_diff(forward) == resulting_diff(backward)
    code = (
        "import hashlib, sys; from pathlib import Path; from dih20.patches.applying import apply_all;"
        "from dih20.patches.resulting_diff import resulting_diff; from dih20.patches.series import load;"
        "from dih20.patches.tree import Tree; t = Tree(Path(sys.argv[1]));"
        "apply_all(t, [p for p in load() if p.folder][:4]);"
        "print(hashlib.sha256(resulting_diff(t)).hexdigest())"
    )
    first = [patch for patch in series if not patch.test_only][:4]
    other = subprocess.run(
        [sys.executable, "-c", code, str(upstream)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )
    here = resulting_diff(lay(upstream, *first)[0])
    assert other.stdout.strip() == hashlib.sha256(here).hexdigest()


def test_every_patched_file_byte_compiles(series: list[Patch], copy_of: Path) -> None:
    tree, _ = lay(copy_of, *series)
    tree_changes = list(tree.changes)
    tree.write()
    python = new_enough_python()
    if python is None:  # then LibCST's own grammar is what is left to ask
        for path in sorted({change.file for edit in edits() for change in edit.changes}):
            parse((copy_of / path).read_text())
        return
    command = [python, "-m", "compileall", "-q", "-f", *sorted(tree_changes)]
    done = subprocess.run(command, cwd=copy_of, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_code_files_have_upstreams_parameters(upstream: Path) -> None:
    seen = 0
    for edit in edits():
        for change in edit.changes:
            if change.action not in ("insert-branch", "replace-function"):
                continue
            (theirs,) = parse((upstream / change.file).read_text()).symbols[change.symbol]
            name = change.symbol.rsplit(".", 1)[-1]
            ours = read_code(EDITS / edit.id, change.code, wants_symbol=name).symbol
            assert ours is not None
            assert ours.parameters == theirs.parameters, f"{edit.id}/{change.code}"
            seen += 1
    assert seen >= 18


def undefined_names(root: Path, files: list[str]) -> set[str]:
    """Give what ruff finds undefined, without line numbers."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "-q"]
    command += ["--select", "F821,E9", "--target-version", "py312", "--output-format", "concise"]
    done = subprocess.run([*command, *files], cwd=root, capture_output=True, text=True, check=False)
    return {re.sub(r":\d+:\d+:", ":", line) for line in done.stdout.splitlines() if ".py:" in line}


def test_our_code_uses_no_name_that_its_module_has_not(
    upstream: Path, patched: Path, tmp_path: Path
) -> None:
    files = sorted({change.file for edit in edits() for change in edit.changes})
    assert undefined_names(patched, files) == undefined_names(upstream, files)
    broken = tmp_path / "broken.py"
    broken.write_text((patched / files[0]).read_text() + "\n\ndef f():\n    return NO_SUCH_NAME\n")
    assert "NO_SUCH_NAME" in "".join(undefined_names(tmp_path, ["broken.py"]))


def test_our_code_uses_no_attribute_that_upstreams_objects_have_not(upstream: Path) -> None:
    """A stand-in in a test has whatever the test gives it; upstream's own text is asked here."""
    owners = {"self", "input_metadata", "envs", "coverage", "param", "layer"}
    ours = {"is_sm90", "gemm_sf_type", "data"}  # the last is torch's
    seen = 0
    for edit in edits():
        for change in edit.changes:
            if not change.code:
                continue
            text = (upstream / change.file).read_text()
            if change.file.endswith("v4_modules/index_attn.py"):
                text += (
                    upstream / "deepinfer/model_executor/input_metadata/input_metadata.py"
                ).read_text()
            tree = ast.parse((EDITS / edit.id / change.code).read_text())
            for node in ast.walk(tree):
                if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                    continue
                if node.value.id in owners and node.attr not in ours:
                    assert re.search(rf"\b{node.attr}\b", text), (edit.id, node.attr)
                    seen += 1
    assert seen > 30


@pytest.mark.parametrize("edit", [name for name in IDS if name != "P12-vision-attention"])
def test_a_wrong_fingerprint_in_any_edit_is_noticed(
    upstream: Path, own_copy: Callable[[str], Patch], edit: str
) -> None:
    patch = own_copy(edit)
    assert patch.folder is not None
    path = patch.folder / "edit.yaml"
    values = yaml.safe_load(path.read_text())
    right = str(values["changes"][-1]["fingerprint"])
    values["changes"][-1]["fingerprint"] = "f" * 16
    path.write_text(yaml.safe_dump(values))
    tree, (outcome,) = lay(upstream, patch)
    assert outcome.state == "body changed"
    assert (outcome.parts[-1].expected, outcome.parts[-1].found) == ("f" * 16, right)
    assert tree.changes == {}


@pytest.mark.parametrize(
    "edit", [e.id for e in edits() if any(c.action.startswith("wrap") for c in e.changes)]
)
def test_a_wrong_number_of_sites_in_any_edit_is_noticed(
    upstream: Path, own_copy: Callable[[str], Patch], edit: str
) -> None:
    patch = own_copy(edit)
    assert patch.folder is not None
    path = patch.folder / "edit.yaml"
    values = yaml.safe_load(path.read_text())
    wrapped = next(c for c in values["changes"] if c["action"].startswith("wrap"))
    wrapped["sites"] = 2
    path.write_text(yaml.safe_dump(values))
    _, (outcome,) = lay(upstream, patch)
    assert outcome.state == "missing"
    assert "1 sites of" in next(part.note for part in outcome.parts if not part.ok)


def test_every_edit_names_tests_that_exist_or_says_what_a_gpu_has_to_show() -> None:
    for edit in edits():
        named = re.findall(r"tests/[\w/]+\.py", " ".join(edit.verified_by))
        assert [path for path in named if not (REPOSITORY / path).is_file()] == [], edit.id
        assert named or any("on a GPU" in line for line in edit.verified_by), edit.id


def test_test_only_edits_are_left_out_unless_asked_for() -> None:
    assert [patch.name for patch in load(test_only=True) if patch.test_only] == [
        "sm90/P13-no-vision"
    ]
    assert not any(patch.test_only for patch in load())


def test_a_tree_with_a_test_only_edit_is_refused_for_builds(
    upstream: Path, series: list[Patch]
) -> None:
    tree = Tree(upstream)
    plain = [patch for patch in series if not patch.test_only]
    outcomes = tuple(apply_all(tree, plain))
    Evaluation(tree=tree, outcomes=outcomes, source_hash="").require_no_test_only()
    outcomes += tuple(apply_all(tree, [patch for patch in series if patch.test_only]))
    made = Evaluation(tree=tree, outcomes=outcomes, source_hash="")
    with pytest.raises(PatchError, match=r"model_loader\.py .* TEST-ONLY insert-branch"):
        made.require_no_test_only()


def test_building_from_a_checkout_that_carries_a_test_only_edit_is_refused(
    series: list[Patch], copy_of: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dih20.console import Console
    from dih20.lock import LockedSource
    from dih20.patches import patchset_identity, prepare_tree

    tree, _ = lay(copy_of, *series)
    tree.write()
    configs = shutil.copytree(REPOSITORY / "configs", tmp_path / "configs")
    image = configs / "images/di-h20.yaml"
    image.write_text(image.read_text().replace("sdist: deepinfer==0.1.0", f"path: {copy_of}"))
    monkeypatch.setenv("DI_CONFIGS", str(configs))
    monkeypatch.setenv("DI_BUILD", str(tmp_path / "build"))
    source = LockedSource(name="deepinfer", kind="path", version="0.1.0")
    lock = Lock(image="di-h20", upstream={"deepinfer": source})
    with pytest.raises(PatchError, match="for tests alone"):
        prepare_tree(Console(), lock)
    with pytest.raises(PatchError, match="for tests alone"):
        patchset_identity(lock)
    assert "sm90/P13-no-vision" in prepare_tree(Console(), lock, test_only=True).patches
