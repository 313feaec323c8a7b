"""The lock as a value: one written form, a stable identity, and what unresolved pins lead to."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dih20.config import load_image
from dih20.errors import LockError, Unresolved
from dih20.lock import Lock
from dih20.lock.canonical import from_plain, render, write
from dih20.lock.checking import check_wants
from dih20.lock.files import CiImage
from dih20.lock.wants import SECTIONS
from dih20.paths import REPOSITORY
from tests.lock.locks import a_base, a_file, a_lock


def test_what_is_written_is_read_back_as_the_same_value(tmp_path: Path) -> None:
    path = tmp_path / "di.lock.yaml"
    write(a_lock(), path)
    assert Lock.load(path) == a_lock()
    assert render(Lock.load(path)) == path.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["di.lock.yaml"]


def test_the_order_in_which_pins_were_found_does_not_count() -> None:
    turned = a_lock(
        apt={"vllm": "unresolved", "stand-in": (a_file("pciutils", "deb"), a_file("git", "deb"))}
    )
    assert render(turned) == render(a_lock())
    assert turned.identity == a_lock().identity


def test_the_identity_follows_any_pin_and_no_comment(tmp_path: Path) -> None:
    other = a_lock(python={"cp313": (a_file("numpy", version="2.3.6"),)})
    assert other.identity != a_lock().identity
    copied = a_lock().model_copy(update={"python": other.python})
    assert copied.identity == other.identity
    path = tmp_path / "di.lock.yaml"
    path.write_text("# one more comment\n" + render(a_lock()))
    assert Lock.load(path).identity == a_lock().identity


def test_files_come_back_with_what_the_written_form_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "di.lock.yaml"
    write(a_lock(), path)
    lock = Lock.load(path)
    git = lock.debs("stand-in")[0]
    assert (git.kind, git.suite, git.filename) == ("deb", "trixie", "git_1.0_amd64.deb")
    assert lock.sources()[0].kind == "sdist"
    assert lock.nccl().version == "2.32.3"
    assert [f.name for f in lock.requirements("cp313")] == ["einops", "numpy"]


def test_the_committed_lock_is_in_its_written_form_and_holds_no_address() -> None:
    path = REPOSITORY / "di.lock.yaml"
    text = path.read_text()
    assert render(Lock.load(path)) == text
    assert "://" not in text
    pins = re.sub(
        r"path: pool/\S+", "", text.split("format:", 1)[1]
    )  # Debian has a source docker.io
    assert re.findall(r"\b[\w.-]+\.(?:org|com|io|net)\b", pins) == []


def test_the_committed_lock_answers_the_committed_configuration() -> None:
    check_wants(Lock.load(REPOSITORY / "di.lock.yaml"), load_image("di-h20"), SECTIONS)


def test_the_committed_lock_pins_what_the_project_stands_on() -> None:
    lock = Lock.load(REPOSITORY / "di.lock.yaml")
    assert str(lock.nccl()) == "nvidia-nccl-cu13 2.32.3"
    assert [f"{f.name} {f.version}" for f in lock.header_wheels()][-1] == "nvidia-cusparse 12.6.3.3"
    assert [str(f) for f in lock.sources()] == [
        "deepinfer-ep 2.5.0",
        "deepinfer-gemm 2.8.2",
        "deepinfer 0.1.0",
    ]
    names = {f.name for f in lock.debs("stand-in")}
    assert {"git", "pciutils", "libdw-dev", "libelf-dev", "libzstd-dev"} <= names
    for tag in ("cp312", "cp313"):
        packages = {f.name for f in lock.requirements(tag)}
        assert {"tilelang", "tile-kernels", "transformers", "pytest"} <= packages
        assert not {"torch", "triton", "flash-attn-4"} & packages
    assert not {f.name for f in lock.debs("stand-in")} & {
        f.name for f in lock.base_debs("stand-in")
    }


@pytest.mark.parametrize(
    ("ask", "command"),
    [
        (lambda lock: lock.base("vllm").require_digest(), "./inv lock --only base"),
        (lambda lock: lock.base("vllm").reference, "./inv lock --only base"),
        (lambda lock: lock.debs("vllm"), "./inv lock --only base"),
        (lambda lock: with_digest(lock).debs("vllm"), "./inv lock --only apt"),
        (lambda lock: lock.header_wheels(), "./inv lock --only wheels"),
        (lambda lock: lock.build_requirements("cp312"), "./inv lock --only wheels"),
        (lambda lock: lock.requirements("cp312"), "./inv lock --only requirements"),
    ],
)
def test_an_unresolved_pin_exits_with_5_and_names_the_command_that_resolves_it(
    ask: Callable[[Lock], object], command: str
) -> None:
    with pytest.raises(Unresolved) as fault:
        ask(a_lock())
    assert fault.value.exit_code == 5
    assert f"`{command}`" in fault.value.remedy


def with_digest(lock: Lock) -> Lock:
    vllm = lock.base("vllm").model_copy(update={"digest": f"sha256:{7:064x}"})
    return lock.model_copy(update={"bases": {**lock.bases, "vllm": vllm}})


def test_a_registry_base_is_pulled_by_digest_and_never_by_its_tag() -> None:
    base = a_base("vllm", image="host:5000/team/vllm:v1", digest=f"sha256:{7:064x}")
    assert base.reference == f"host:5000/team/vllm@sha256:{7:064x}"


def test_a_name_that_the_lock_does_not_have_lists_those_it_has() -> None:
    with pytest.raises(LockError, match="stand-in, vllm"):
        a_lock().base("ubuntu")
    with pytest.raises(LockError, match="deepinfer, mine"):
        a_lock().source("deepgemm")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda text: text.replace("sha256: 0", "sha256: x"), "String should match pattern"),
        (lambda text: text.replace("format: 1", "format: 2"), "format"),
        (lambda text: text + "extra: 1\n", "extra"),
        (lambda text: text.replace("wheels:", "wheels: ["), "not YAML"),
        (lambda text: text.replace("image: di-h20", "image: di-h20\nimage: two"), "given twice"),
        (lambda text: "bases: [1]\n", "not of the lock's form"),
    ],
)
def test_a_damaged_lock_is_an_error_that_says_where(tmp_path: Path, change, found: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "di.lock.yaml"
    path.write_text(change(render(a_lock())))
    with pytest.raises(LockError) as fault:
        Lock.load(path)
    assert found in fault.value.found
    assert "not edited by hand" in fault.value.remedy


def test_a_missing_lock_names_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"no lock at .*none.yaml") as fault:
        Lock.load(tmp_path / "none.yaml")
    assert "./inv lock" in fault.value.remedy


def test_the_ci_image_s_pins_come_back_and_leave_the_identity_as_it_is() -> None:
    lock = a_lock()
    ci = CiImage(
        base_digest=f"sha256:{1:064x}", debs=(a_file("git", "deb"),), wheels=(a_file("ruff"),)
    )
    with_ci = lock.model_copy(update={"ci": ci, "wants": {**lock.wants, "ci": "0" * 16}})
    assert with_ci.identity == lock.identity
    assert Lock.model_validate(from_plain(yaml.safe_load(render(with_ci)))) == with_ci
    own = a_base("own", image="debian:13", digest=f"sha256:{2:064x}", suite="bookworm")
    deb = a_file("git", "deb", suite="bookworm")
    on_own = with_ci.model_copy(update={"ci": ci.model_copy(update={"base": own, "debs": (deb,)})})
    assert Lock.model_validate(from_plain(yaml.safe_load(render(on_own)))) == on_own
    with pytest.raises(Unresolved, match="the CI image's packages"):
        lock.ci_image()
