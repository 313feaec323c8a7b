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
    longest: int | None  # bytes of text that one token can stand for; None: a normaliser cuts text

    @classmethod
    def load(cls, folder: Path, *, canary: bool = False) -> Codec:
        """Read tokenizer.json and tokenizer_config.json of a checkpoint's folder."""
        from tokenizers import Tokenizer

        text = _read(folder / "tokenizer.json")
        config_file = folder / "tokenizer_config.json"
        config = json.loads(_read(config_file)) if config_file.exists() else {}
        template = find_template(folder, config)
        if template is None and canary:
            template = CANARY_TEMPLATE.read_text(encoding="utf-8")
        described = json.loads(text)
        table = token_bytes(described)
        normaliser = described.get("normalizer") or {}
        is_plain = not normaliser.get("normalizers", normaliser)
        return cls(
            tokenizer=Tokenizer.from_str(text),
            table=table,
            json_table=[_as_json(each) for each in table],
            longest=max(map(len, table)) if is_plain else None,
            chat=None if template is None else ChatTemplate(template, _special(config)),
        )

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Give the ids. special: add what the tokenizer adds around a text, as for completions."""
        # the batch call lets other threads run meanwhile
        (found,) = self.tokenizer.encode_batch([text], add_special_tokens=special)
        ids: list[int] = found.ids
        return ids

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


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigError(
            found=f"{path}: {fault}",
            expected="the tokenizer files of the checkpoint in its folder",
            remedy="name the checkpoint's folder as `model` in the settings",
        ) from fault


def _special(config: dict[str, Any]) -> dict[str, str]:
    """Give bos_token and so on, as templates name them."""
    found = {}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(key)
        found[key] = value.get("content", "") if isinstance(value, dict) else value or ""
    return found
