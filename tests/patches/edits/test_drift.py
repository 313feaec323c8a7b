"""A later upstream: each kind of drift is named, and doing what the report says mends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dih20.console import Console
from dih20.errors import PatchError
from dih20.patches import report
from dih20.patches.applying import Outcome
from dih20.patches.series import Patch
from tests.patches.upstream_tree import lay, rewrite

LINEAR = "deepinfer/model_executor/layers/linear.py"
USERBUFFER = "deepinfer/model_executor/parallel_utils/userbuffer.py"
PARAMETERS = "deepinfer/hugging_face/parameters.py"
OwnCopy = Callable[[str], Patch]


def judged(root: Path, patch: Patch) -> Outcome:
    _, (outcome,) = lay(root, patch)
    return outcome


def mend(patch: Patch, old: str, new: str) -> Patch:
    assert patch.folder is not None
    path = patch.folder / "edit.yaml"
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new))
    return patch


def test_a_renamed_symbol_is_found_by_its_code(copy_of: Path, own_copy: OwnCopy) -> None:
    rewrite(copy_of, PARAMETERS, "def set_ue8m0_sf(", "def pack_scales(")
    patch = own_copy("P05-dense-requant")
    outcome = judged(copy_of, patch)
    assert outcome.state == "moved"
    note = outcome.parts[0].note
    assert "it is named pack_scales now, with the same code" in note
    assert "set symbol: pack_scales in patches/sm90/P05-dense-requant/edit.yaml" in note
    assert "search our code files for set_ue8m0_sf" in note

    mend(patch, "symbol: set_ue8m0_sf", "symbol: pack_scales")
    assert patch.folder is not None
    code = patch.folder / "set_ue8m0_sf.py"
    code.write_text(code.read_text().replace("def set_ue8m0_sf", "def pack_scales"))
    assert judged(copy_of, patch).state == "applied"


def test_a_moved_function_is_found_in_its_new_file(copy_of: Path, own_copy: OwnCopy) -> None:
    text = (copy_of / PARAMETERS).read_text()
    start = text.index("def set_ue8m0_sf")
    moved = "deepinfer/hugging_face/scales.py"
    (copy_of / moved).write_text("import warnings\n\nimport torch\n\n\n" + text[start:])
    (copy_of / PARAMETERS).write_text(text[:start].rstrip() + "\n")
    patch = own_copy("P05-dense-requant")
    outcome = judged(copy_of, patch)
    assert outcome.state == "moved"
    assert (
        f"it stands in {moved} now, with the same code: set file: {moved}" in outcome.parts[0].note
    )
    assert judged(copy_of, mend(patch, f"file: {PARAMETERS}", f"file: {moved}")).state == "applied"


def test_a_changed_body_gets_both_fingerprints_and_the_lines(
    copy_of: Path, own_copy: OwnCopy
) -> None:
    rewrite(copy_of, LINEAR, '"round_sf": True,', '"round_sf": False,')
    patch = own_copy("P03-fp8-linear-128")
    outcome = judged(copy_of, patch)
    (part,) = [part for part in outcome.parts if not part.ok]
    assert (outcome.state, part.state) == ("body changed", "body changed")
    assert part.place == f"{LINEAR}: get_fp8_cast_params"
    assert part.expected == "1f067bd1254165af" != part.found
    assert "not that of 0.1.0 any more (lines 17-24)" in part.note
    assert f"then set fingerprint: {part.found}" in part.note
    assert judged(copy_of, mend(patch, part.expected, part.found)).state == "applied"


def test_an_extra_keyword_is_named(copy_of: Path, own_copy: OwnCopy) -> None:
    rewrite(
        copy_of,
        USERBUFFER,
        "        use_fp8_dispatch: bool,\n",
        "        use_fp8_dispatch: bool,\n        num_qps: int = 0,\n",
    )
    patch = own_copy("P11-local-buffers")
    outcome = judged(copy_of, patch)
    (part,) = [part for part in outcome.parts if not part.ok]
    assert part.state == "body changed"
    assert "upstream added parameter num_qps (allocate_ep.py has self, ep_group," in part.note
    assert "bring patches/sm90/P11-local-buffers/allocate_ep.py in line with it" in part.note


def test_formatting_comments_and_lines_above_are_no_drift(copy_of: Path, own_copy: OwnCopy) -> None:
    rewrite(
        copy_of, LINEAR, "def get_fp8_cast_params", "# moved down\n\n\n\ndef get_fp8_cast_params"
    )
    rewrite(copy_of, LINEAR, '"round_sf": True,', '"round_sf": True,  # rounded')
    assert judged(copy_of, own_copy("P03-fp8-linear-128")).state == "applied"


def test_a_symbol_that_is_gone_is_missing_with_names_like_it(
    copy_of: Path, own_copy: OwnCopy
) -> None:
    rewrite(copy_of, USERBUFFER, "    def allocate_engram(", "    def allocate_engrams(")
    rewrite(copy_of, USERBUFFER, '"allocate_engram can only', '"it can only')
    part = next(p for p in judged(copy_of, own_copy("P11-local-buffers")).parts if not p.ok)
    assert part.state == "missing"
    assert "similar names there: _UserBufferManager.allocate_engrams" in part.note
    assert "take it out of the series" in part.note


def test_a_file_that_is_gone_is_missing(copy_of: Path, own_copy: OwnCopy) -> None:
    (copy_of / PARAMETERS).unlink()
    outcome = judged(copy_of, own_copy("P05-dense-requant"))
    assert outcome.state == "missing"
    assert "no such file" in outcome.parts[0].note


def test_an_import_that_upstream_guards_itself_is_told(copy_of: Path, own_copy: OwnCopy) -> None:
    vit = "deepinfer/model_executor/models/vision_encoder/vit.py"
    line = "from flash_attn.cute.interface import _flash_attn_fwd\n"
    patch = own_copy("P12-vision-attention")
    assert patch.folder is not None
    code = (patch.folder / "vision_attention.py").read_text().split('"""\n', 1)[1]
    rewrite(copy_of, vit, line, code.lstrip("\n"))
    assert judged(copy_of, patch).state == "already upstream"
    rewrite(copy_of, vit, code.lstrip("\n"), "from other import _flash_attn_fwd\n")
    assert judged(copy_of, patch).state == "missing"


def test_check_prints_what_to_do_and_leaves_the_tree_alone(
    copy_of: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(copy_of, PARAMETERS, "def set_ue8m0_sf(", "def pack_scales(")
    before = (copy_of / PARAMETERS).read_bytes()
    with pytest.raises(PatchError) as caught:
        report.check(Console(), "deepinfer", str(copy_of))
    out = capsys.readouterr().out
    assert (
        "sm90/P05-dense-requant: deepinfer/hugging_face/parameters.py: set_ue8m0_sf: moved" in out
    )
    assert "set symbol: pack_scales" in "".join(out.split("\n"))
    states = {row["name"]: row["state"] for row in caught.value.details["patches"]}
    assert states["sm90/P05-dense-requant"] == "moved"
    assert states["sm90/P06-expert-fp8"] == "applied"
    assert (copy_of / PARAMETERS).read_bytes() == before
