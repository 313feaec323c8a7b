"""The tokenizer of a checkpoint, as the gateway uses it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from dih20.errors import ConfigError
from dih20.serve.text.chat import CANARY_TEMPLATE, ChatTemplate, find_template
from dih20.serve.text.decoding import TextDecoder
from dih20.serve.text.token_bytes import token_bytes


@dataclass(frozen=True, kw_only=True)
class Codec:
    """Encode prompts, decode answers, render chats. chat None: the checkpoint has no template."""

    tokenizer: Any  # tokenizers.Tokenizer
    table: list[bytes]
    json_table: list[bytes | None]  # a token's text as JSON; None where it is no whole text
    chat: ChatTemplate | None
    longest: int | None  # bytes of text that one token can stand for; None: any number
    begin: list[int]  # ids before a completion's, where tokenizer.json itself does not add them

    @classmethod
    def load(cls, folder: Path, *, canary: bool = False) -> Codec:
        """Read tokenizer.json and tokenizer_config.json of a checkpoint's folder."""
        described = _read_json(folder / "tokenizer.json")
        config_file = folder / "tokenizer_config.json"
        config = _read_json(config_file) if config_file.exists() else {}
        template = find_template(folder, config)
        if template is None and canary:
            template = CANARY_TEMPLATE.read_text(encoding="utf-8")
        tokenizer = _library_tokenizer(folder / "tokenizer.json")
        table = token_bytes(described)
        return cls(
            tokenizer=tokenizer,
            table=table,
            json_table=[_as_json(each) for each in table],
            longest=_longest(described, table),
            begin=_begin(tokenizer, config),
            chat=None if template is None else ChatTemplate(template, _special(config)),
        )

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Give the ids. special: add what the tokenizer adds around a text, as for completions."""
        # the batch call lets other threads run meanwhile
        (found,) = self.tokenizer.encode_batch([text], add_special_tokens=special)
        ids: list[int] = found.ids
        return self.begin + ids if special else ids

    def fewest_tokens(self, text: str) -> int:
        """Give a number of tokens that this text cannot be under; costs no tokenising."""
        return len(text.encode()) // self.longest if self.longest else 0

    def decoder(self) -> TextDecoder:
        return TextDecoder(self.table)

    def decode(self, ids: list[int]) -> str:
        """Give the text of a whole answer."""
        decoder = self.decoder()
        return "".join([decoder.feed(token) for token in ids]) + decoder.end()


def _as_json(data: bytes) -> bytes | None:
    try:
        return orjson.dumps(data.decode()) if data else None
    except UnicodeDecodeError:
        return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(values, dict):
            return values
        fault: object = f"a {type(values).__name__}, not an object"
    except (OSError, ValueError) as error:
        fault = error
    raise _unusable(path, fault)


def _library_tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as fault:  # the library raises no other class
        raise _unusable(path, fault) from fault


def _unusable(path: Path, fault: object) -> ConfigError:
    return ConfigError(
        found=f"{path}: {fault}",
        expected="the tokenizer files of the checkpoint in its folder",
        remedy="name the checkpoint's folder as `model` in the settings",
    )


def _longest(described: dict[str, Any], table: list[bytes]) -> int | None:
    """Give the most bytes of text that become one token; None where that has no bound."""
    normaliser = described.get("normalizer") or {}
    if normaliser.get("normalizers", normaliser) or described["model"].get("unk_token"):
        return None  # text may be cut away, or any run of it become the unknown token
    added = [len(entry["content"].encode()) for entry in described.get("added_tokens") or []]
    return max([1, *map(len, table), *added])


def _begin(tokenizer: Any, config: dict[str, Any]) -> list[int]:
    """Give the id that add_bos_token asks for, unless the tokenizer adds it by itself.

    Tokenizer classes of the Llama kind add it when they are loaded, so their file does not say so.
    """
    id = tokenizer.token_to_id(_special(config)["bos_token"] or "")
    if not config.get("add_bos_token") or id is None:
        return []
    return [] if tokenizer.encode("a").ids[:1] == [id] else [id]


def _special(config: dict[str, Any]) -> dict[str, str]:
    """Give bos_token and so on, as templates name them."""
    found = {}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(key)
        found[key] = value.get("content", "") if isinstance(value, dict) else value or ""
    return found
