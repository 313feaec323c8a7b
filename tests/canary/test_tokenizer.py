"""The canary's tokenizer, and what the engine asks of it."""

from __future__ import annotations

import json

import pytest

from v41.canary import FOLDER
from v41.canary.questions import QUESTIONS
from v41.canary.tokenizer import Tokenizer, tokenizer_json
from v41.canary.vocabulary import SIZE, tokens

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(FOLDER / "tokenizer.json")


def test_every_question_and_answer_comes_back_as_it_went_in(tokenizer: Tokenizer) -> None:
    for question in QUESTIONS:
        text = question.prompt + question.answer
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", ["héllo 😀", "\t\r\n", "鑫磊，x=1", "<image>!", "a\u0301"])
def test_text_without_own_tokens_goes_through_bytes_and_back(
    tokenizer: Tokenizer, text: str
) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_words_win_over_their_characters(tokenizer: Tokenizer) -> None:
    names = [tokenizer.names[token] for token in tokenizer.encode("王伟住北京，问：")]
    assert names == ["王", "伟", "住", "北京", "，", "问："]


def test_half_a_character_decodes_to_the_replacement_character(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([tokenizer.vocab["<0xE4>"]]) == "\ufffd"


def test_the_pad_token_has_id_2_and_the_image_token_is_in_the_vocabulary(
    tokenizer: Tokenizer,
) -> None:
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    assert tokenizer.vocab["<｜▁pad▁｜>"] == 2 == config["pad_token_id"]
    assert tokenizer.vocab["<image>"] == config["image_token_id"] > 0


def test_ids_are_dense_and_every_token_has_one_name() -> None:
    names = tokens()
    assert len(names) == len(set(names)) == SIZE


def test_the_committed_tokenizer_is_the_one_that_the_lists_give() -> None:
    committed = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    assert committed == tokenizer_json()
