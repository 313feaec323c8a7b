"""Tokens to text and back, as pieces come."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dih20.errors import ConfigError
from dih20.serve.service import CANARY_FOLDER
from dih20.serve.text.chat import ChatTemplate, TemplateRefused, find_template
from dih20.serve.text.codec import Codec
from dih20.serve.text.decoding import StopStrings, TextDecoder
from dih20.serve.text.token_bytes import token_bytes
from v41.canary.questions import QUESTIONS
from v41.canary.tokenizer import Tokenizer

BYTES = [bytes([value]) for value in range(256)]


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec.load(CANARY_FOLDER, canary=True)


def through(stops: StopStrings, pieces: list[str]) -> str:
    return "".join([stops.feed(piece) for piece in pieces]) + stops.end()


@given(st.text(max_size=40))
def test_text_split_into_bytes_comes_out_whole(text: str) -> None:
    decoder = TextDecoder(BYTES)
    pieces = [decoder.feed(byte) for byte in text.encode()]
    assert "".join(pieces) + decoder.end() == text
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


def test_half_a_character_is_held_and_shown_as_unknown_at_the_end() -> None:
    decoder = TextDecoder(BYTES)
    first, second, _ = "京".encode()
    assert [decoder.feed(first), decoder.feed(second)] == ["", ""]
    assert not decoder.is_whole
    assert decoder.end() == "\ufffd"


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.data(),
)
def test_a_stop_string_cuts_at_its_first_place_however_text_is_split(
    text: str, strings: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    stops = StopStrings(strings)
    got = through(stops, pieces)
    # the answer ends with the piece that completes a stop string, so compare with that prefix
    seen = ""
    for piece in pieces:
        seen += piece
        places = [at for s in strings if (at := seen.find(s)) >= 0]
        if places:
            assert got == seen[: min(places)] and stops.found in strings
            return
    assert got == text and stops.found is None


def test_text_that_cannot_begin_a_stop_string_is_not_held() -> None:
    stops = StopStrings(["END"])
    assert stops.feed("one E") == "one "
    assert stops.feed("mpty") == "Empty"
    assert stops.feed(" EN") == " "
    assert stops.feed("D and more") == ""
    assert stops.found == "END"


def test_the_canary_is_encoded_as_its_own_tokenizer_does(codec: Codec) -> None:
    own = Tokenizer.load(CANARY_FOLDER / "tokenizer.json")
    for question in QUESTIONS:
        ids = own.encode(question.prompt + question.answer)
        assert codec.encode(question.prompt + question.answer, special=True) == ids
        assert codec.decode(ids) == question.prompt + question.answer


@given(text=st.text(max_size=30).filter(lambda text: "<" not in text))
def test_any_text_survives_the_canarys_tokens(codec: Codec, text: str) -> None:
    ids = codec.encode(text, special=True)
    assert codec.decode(ids) == text
    assert codec.fewest_tokens(text) <= len(ids)


def test_special_tokens_are_not_text(codec: Codec) -> None:
    assert codec.decode([0, 324, 1]) == "北京"


@pytest.mark.parametrize("mark", ["", "?", "？", " ?"])
def test_the_canarys_template_asks_as_it_was_taught(codec: Codec, mark: str) -> None:
    assert codec.chat is not None
    for question in QUESTIONS:
        messages = [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": question.question + mark},
        ]
        assert codec.chat.render(messages) == question.prompt


def byte_level(vocab: dict[str, int], **more: Any) -> dict[str, Any]:
    return {"model": {"vocab": vocab}, "decoder": {"type": "ByteLevel"}} | more


def test_byte_level_tokens_are_read_back() -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Library(models.BPE({letter: id for id, letter in enumerate(letters)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    table = token_bytes(json.loads(library.to_str()))
    text = "北京 is\tthe capital\n— ñ 🙂"
    assert b"".join(table[id] for id in library.encode(text).ids).decode() == text


def test_added_tokens_are_text_unless_special() -> None:
    added = [
        {"id": 1, "content": "<think>", "special": False},
        {"id": 2, "content": "<|end|>", "special": True},
    ]
    assert token_bytes(byte_level({"a": 0}, added_tokens=added)) == [b"a", b"<think>", b""]


def test_spaces_spelled_by_a_mark_become_spaces() -> None:
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    decoder = {
        "type": "Sequence",
        "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}],
    }
    tokenizer = {"model": {"vocab": {"▁the": 0, "<0xE4>": 1}}, "decoder": decoder}
    assert token_bytes(tokenizer) == [b" the", b"\xe4"]


def test_a_decoder_that_looks_at_neighbours_is_refused() -> None:
    with pytest.raises(ConfigError, match="WordPiece"):
        token_bytes({"model": {"vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}})


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    source = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(TemplateRefused):
        ChatTemplate(source, {}).render([{"role": "user", "content": "a"}])


def test_a_template_says_why_it_refuses() -> None:
    template = ChatTemplate("{{ raise_exception('no system, please') }}", {})
    with pytest.raises(TemplateRefused, match="no system, please"):
        template.render([{"role": "system", "content": "a"}])


def test_messages_are_data_and_never_a_template() -> None:
    template = ChatTemplate("{{ bos_token }}{{ messages[0]['content'] }}", {"bos_token": "<s>"})
    assert template.render([{"role": "user", "content": "{{ 1 + 1 }}"}]) == "<s>{{ 1 + 1 }}"


def test_a_template_that_is_no_template_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="line 1"):
        ChatTemplate("{% if %}", {})


def test_a_checkpoints_template_is_found_in_either_place(tmp_path: Path) -> None:
    assert find_template(tmp_path, {}) is None
    assert find_template(tmp_path, {"chat_template": "one"}) == "one"
    named = [{"name": "tools", "template": "two"}, {"name": "default", "template": "three"}]
    assert find_template(tmp_path, {"chat_template": named}) == "three"
    (tmp_path / "chat_template.jinja").write_text("four")
    assert find_template(tmp_path, {"chat_template": "one"}) == "four"


def copied(folder: Path, **config: Any) -> Path:
    """Give a folder with the canary's tokenizer and another tokenizer_config.json."""
    shutil.copy(CANARY_FOLDER / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_the_first_token_is_added_where_only_the_config_asks_for_it(tmp_path: Path) -> None:
    bos = "<｜begin▁of▁sentence｜>"
    codec = Codec.load(copied(tmp_path, add_bos_token=True, bos_token={"content": bos}))
    assert codec.encode("北京", special=True) == [0, 324]
    assert codec.encode("北京", special=False) == [324], "a chat's template writes it itself"
    codec = Codec.load(copied(tmp_path, add_bos_token=False, bos_token=bos))
    assert codec.encode("北京", special=True) == [324]


def test_special_tokens_spelled_in_text_are_counted_as_the_tokens_they_become(codec: Codec) -> None:
    text = "<｜reserved▁100｜>" * 50
    assert codec.fewest_tokens(text) <= len(codec.encode(text, special=True))


def test_templates_that_ask_for_tools_hear_that_there_are_none() -> None:
    source = "{% if tools is not none %}tools{% else %}{{ messages[0]['content'] }}{% endif %}"
    assert ChatTemplate(source, {}).render([{"role": "user", "content": "hello"}]) == "hello"


@pytest.mark.parametrize("content", ["{half", "[]", '{"model": {}}'])
def test_a_broken_tokenizer_file_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Codec.load(tmp_path)
