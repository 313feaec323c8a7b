"""Engram's token map, on cases worked out by hand."""

from __future__ import annotations

import json

import pytest

from v41.canary import FOLDER
from v41.canary.tokenizer import Tokenizer
from v41.engram_vocab import compressed_ids, compressed_key

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Paris", "paris"),
        (" Paris", "paris"),
        ("ÉTÉ", "ete"),
        ("Ａ１", "a1"),  # full width
        ("ﬁ", "fi"),  # a ligature
        ("e\u0301", "e"),
        ("a \t\n b", "a b"),
        (" ", " "),  # a lone space is kept
        ("\n", " "),
        ("  \t", " "),
        ("北京", "北京"),
        ("Σ", "σ"),
        ("ΑΣ", "ασ"),  # letter by letter: no final sigma
        ("\u0301", "\u0301"),  # nothing would be left, so the text itself is the key
        ("\u3000", " "),
    ],
)
def test_a_key_folds_width_accents_case_and_blanks(text: str, key: str) -> None:
    assert compressed_key(text, "unused") == key


def test_broken_pieces_are_keyed_by_their_spelling() -> None:
    assert compressed_key("\ufffd", "<0xE4>") == "<0xE4>"
    assert compressed_key("\ufffd", "<0xE5>") == "<0xE5>"


def test_ids_are_numbered_in_the_order_keys_first_appear() -> None:
    texts = ["B", "a", "b", " A", "\ufffd", "\ufffd", "c"]
    names = ["B", "a", "b", "ĠA", "<0xE4>", "<0xE5>", "c"]
    assert compressed_ids(texts, names).tolist() == [0, 1, 0, 1, 2, 3, 4]


def test_config_json_gives_the_size_of_the_canarys_map() -> None:
    tokenizer = Tokenizer.load(FOLDER / "tokenizer.json")
    texts = [tokenizer.decode([token]) for token in range(len(tokenizer.names))]
    size = int(compressed_ids(texts, tokenizer.names).max()) + 1
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    assert config["text_config"]["engram_compressed_vocab_size"] == size < len(texts)
