"""What attention may read, exactly: each fault of one entry is named, which log-probs cannot see."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch

from dih20.engine_check.attention_reach import decode_faults, prefill_faults
from dih20.engine_check.context import Context
from dih20.engine_check.driver import Ask
from dih20.engine_check.reach_watch import DECODE, PREFILL, Reached, ReachWatch
from dih20.engine_check.stage_answers import long_and_mixed
from tests.engine_check.fake_engine import FakeDriver
from v41.canary import FOLDER
from v41.canary.facts import fact_context

pytestmark = pytest.mark.torch

PROMPT, STEPS = 140, 1  # beyond the window of 128 and the selection of 64 entries
Given = dict[str, Any]
Change = Callable[[Given], None]


class Kept(ReachWatch):
    """Keeps what attention is given as well."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.given: dict[tuple[str, int], Given] = {}

    def _judge(self, layer: int, call: str, judge: Any, given: Given) -> None:
        self.given[call, layer] = given
        super()._judge(layer, call, judge, given)


@pytest.fixture(scope="module")
def sound(canary: Any) -> Kept:
    """One sequence of a sound engine, watched."""
    ids = tuple(
        canary.tokenizer.encode(fact_context(3, sentences=40, facts=6, asked=1, far=50).text)
    )
    driver = FakeDriver(canary, FOLDER)
    watch = Kept(driver.model, canary.config, driver.skip_step)
    with watch:
        driver.generate(
            [
                Ask(
                    prompt=ids[:PROMPT],
                    max_tokens=STEPS + 1,
                    golden=ids[PROMPT : PROMPT + STEPS + 1],
                )
            ]
        )
    return watch


def test_a_sound_engine_reads_what_it_may_in_every_layer_row_and_step(sound: Kept) -> None:
    assert sound.faults == {}
    assert (sound.rows, sound.steps) == ([PROMPT] * 6, [STEPS] * 6)
    assert sound.left_out(PROMPT, STEPS) == []
    assert "expected 140 and 3" in sound.left_out(PROMPT, 3)[0]


def window_of_127(given: Given) -> None:
    given["window"][:, 127] = -1


def own_key_missing(given: Given) -> None:
    given["window"][:, 0] = -1


def another_key(given: Given) -> None:
    given["window"][0, 100] = given["window"][0, 0] + 1


def another_states_ring(given: Given) -> None:
    given["window"][0, 3] += 129


def cached_rows(given: Given) -> None:
    given["total_k_swa_cached"] = 128


def entries_one_late(given: Given) -> None:
    metadata = given["input_metadata"]
    for key, ratio in (("1", 1), ("2", 2)):
        metadata.ke[key] = metadata.klen[key] = metadata.positions // ratio


def stored_beside(given: Given) -> None:
    given["input_metadata"].slot_mapping_store_swa += 1


def entry_stored_beside(given: Given) -> None:
    given["input_metadata"].slot_mapping_store_ca["1"] += 1


def positions_from_1(given: Given) -> None:
    given["input_metadata"].positions += 1


def one_entry_too_few(given: Given) -> None:
    given["kv_ca_index"][:, -1] = -1


def one_entry_twice(given: Given) -> None:
    given["kv_ca_index"][:, -1] = given["kv_ca_index"][:, -2]


def another_sequences_page(given: Given) -> None:
    given["kv_ca_index"][0, 7] = 5 * 128


FAULTS: tuple[tuple[Change, str, int, str], ...] = (
    (window_of_127, PREFILL, 0, "window rows of row 127 are 127 from 1 to 127, expected 128 from 0 to 127; 13 rows"),
    (window_of_127, DECODE, 0, "window slots of row 0 are 127 from 0 to 128, expected 128"),
    (own_key_missing, PREFILL, 5, "window rows of row 0 are none, expected 1 from 0 to 0; 140 rows"),
    (own_key_missing, DECODE, 5, "window slots of row 0 are 127"),
    (another_key, PREFILL, 3, "window rows of row 0 are 2 from 0 to 1, expected 1 from 0 to 0; 1 rows"),
    (another_states_ring, DECODE, 4, "window slots of row 0 are 128 from"),
    (cached_rows, PREFILL, 0, "rows of the cached window are read"),
    (entries_one_late, PREFILL, 1, "ke - ks of 2 is 0 in row 1, expected 1; 70 rows"),
    (entries_one_late, PREFILL, 3, "klen of 1 is 0 in row 0, expected 1; 140 rows"),
    (entries_one_late, DECODE, 3, "klen of 1 is 140 in row 0, expected 141; 1 rows"),
    (stored_beside, DECODE, 2, "slot_mapping_store_swa is 141 in row 0, expected 140; 1 rows"),
    (entry_stored_beside, DECODE, 3, "slot_mapping_store_ca of 1 is 141 in row 0, expected 140; 1 rows"),
    (positions_from_1, PREFILL, 0, "positions is 1 in row 0, expected 0; 140 rows"),
    (positions_from_1, DECODE, 0, "positions is 141 in row 0, expected 140; 1 rows"),
    (one_entry_too_few, PREFILL, 4, "row 63 selects 63 from 0 to 62, expected 64 of the entries below 64"),
    (one_entry_too_few, DECODE, 4, "row 0 selects 63 from"),
    (one_entry_twice, PREFILL, 3, "row 62 selects 64 from 0 to 62, expected 63 of the entries below 63; 78 rows"),
    (one_entry_twice, DECODE, 3, "expected 64 of the entries below 141"),
    (another_sequences_page, DECODE, 3, "row 0 selects 64 from"),
)  # fmt: skip


@pytest.mark.parametrize(("change", "call", "layer", "found"), FAULTS)
def test_a_fault_of_one_entry_is_named(
    change: Change, call: str, layer: int, found: str, sound: Kept
) -> None:
    given = {name: deepcopy(value) for name, value in sound.given[call, layer].items()}
    window = "kv_swa_full_index" if call == PREFILL else "kv_swa_index"
    given["window"] = given[window]  # the same tensor
    config = sound.config
    kind = config.layer(layer)

    def judged() -> list[str]:
        if call == PREFILL:
            return prefill_faults(given, kind, config)
        return decode_faults(given, PROMPT, kind, config)

    assert judged() == []
    change(given)
    assert any(found in fault for fault in judged()), judged()


def test_a_field_that_has_another_name_is_told_and_the_engine_goes_on(
    driver: Any, context: Context
) -> None:
    healthy = driver.model._pass

    def changed(site: str, tensor: Any, metadata: Any) -> Any:
        if site == "embed":
            del metadata.klen
        return healthy(site, tensor, metadata)

    driver.model._pass = changed
    outcome = long_and_mixed(driver, context)
    assert outcome.reasons[0].startswith("what attention may read is not as it should be")
    faults = "\n".join(outcome.numbers["reach"]["faults"])
    assert "63 tokens: layer 1, _prefill_attention: AttributeError" in faults
    assert "'klen'" in faults
    assert outcome.numbers["reach"]["rows"] == 6 * 63


def test_modules_and_methods_that_have_other_names_are_told(canary: Any) -> None:
    with ReachWatch(torch.nn.Module(), canary.config, lambda: False) as watch:
        pass
    assert len(watch.faults) == 12
    assert "has no attribute `model`" in watch.faults["layer 5, _decode_attention"]


def test_what_was_found_is_counted_over_cases(sound: Kept, values: Any) -> None:
    reached = Reached()
    reached.take(values.long[0], sound)
    numbers, reasons = reached.judged()
    assert (numbers["rows"], numbers["steps"]) == (6 * PROMPT, 6 * STEPS)
    assert "the first of 6 faults: 63 tokens: layer 0: attention over 140 rows" in reasons[0]
    assert Reached().judged()[1] == []
