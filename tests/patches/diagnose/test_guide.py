"""The guide's table is the evidence, and the edits of the series are explained."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dih20.patches.diagnose.hypotheses import HYPOTHESES
from dih20.patches.series import load
from dih20.paths import REPOSITORY

pytest.importorskip("torch", exc_type=ImportError)
pytestmark = pytest.mark.torch

GUIDE = REPOSITORY / "docs/why-it-printed-garbage.md"


def test_the_table_of_symptoms_is_that_of_the_evidence_file() -> None:
    from bench.garbage import EVIDENCE, SYMPTOMS, with_table

    evidence = json.loads(EVIDENCE.read_text())
    text = GUIDE.read_text()
    assert with_table(text, evidence) == text, "run: python -m bench.garbage"
    assert [row["fault"] for row in evidence["symptoms"]] == [each.fault for each in SYMPTOMS]
    healthy = evidence["symptoms"][0]
    assert healthy["right"] == healthy["asked"] >= 24


def test_every_fault_of_the_table_acts_and_the_first_in_every_layer() -> None:
    import torch

    from bench.garbage import SYMPTOMS, broken_everywhere
    from dih20.parity.sabotage.canary import canary_base
    from v41.tap import no_tap

    torch.set_num_threads(1)
    base = canary_base()
    healthy = base.reference(no_tap)
    tokens, following = base.tokens[:, :9], base.tokens[:, 9:10]

    def logits(model: Any) -> Any:
        kept = model.new_cache()
        return torch.cat([model.extend(tokens, kept), model.extend(following, kept)], dim=1)

    with torch.no_grad():
        right = logits(healthy)
        for symptom in SYMPTOMS:
            same = torch.equal(logits(broken_everywhere(base, symptom.injectors)()), right)
            assert same == (not symptom.injectors), symptom.fault
    masked = broken_everywhere(base, SYMPTOMS[1].injectors)()
    for mine, theirs in zip(masked._attention, healthy._attention, strict=True):
        assert type(mine) is not type(theirs)


def test_every_hypothesis_and_every_edit_is_explained() -> None:
    guide = GUIDE.read_text()
    assert [name for name in HYPOTHESES if f"| {name} |" not in guide] == []
    patches = (REPOSITORY / "docs/patches.md").read_text()
    ids = [
        patch.name.split("/")[-1].split("-")[0] for patch in load(test_only=True) if patch.folder
    ]
    assert [name for name in ids if name not in patches] == []
