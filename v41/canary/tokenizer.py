"""The canary's tokenizer: words longest first, then characters, then UTF-8 bytes.

tokenizer.json says the same to the engine's library: a splitter with this pattern, a vocabulary
without merges, bytes for what is left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from v41.canary.vocabulary import BOS, EOS, PAD, SPECIAL, byte_token, tokens

_BYTE = re.compile(r"<0x([0-9A-F]{2})>\Z")


class Tokenizer:
    """Text to token ids and back, from the vocabulary of a tokenizer.json."""

    def __init__(self, vocab: dict[str, int], special: Sequence[str]) -> None:
        self.vocab = vocab
        self.names = [name for name, _ in sorted(vocab.items(), key=lambda item: item[1])]
        self.special = frozenset(special)
        self._pattern = re.compile(_pattern(self.names))

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a tokenizer.json that tokenizer_json() wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(data["model"]["vocab"], [entry["content"] for entry in data["added_tokens"]])

    @classmethod
    def build(cls) -> Tokenizer:
        return cls({name: index for index, name in enumerate(tokens())}, SPECIAL)

    def encode(self, text: str) -> list[int]:
        """Give the ids of a text; special tokens in it are taken as such."""
        ids: list[int] = []
        for piece in self._pattern.findall(text):
            if piece in self.vocab:
                ids.append(self.vocab[piece])
            else:
                ids += [self.vocab[byte_token(value)] for value in piece.encode()]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Give the text of ids; bytes that are no whole character become U+FFFD."""
        text, pending = "", b""
        for token in ids:
            name = self.names[token]
            if match := _BYTE.match(name):
                pending += bytes([int(match[1], 16)])
                continue
            text, pending = text + _characters(pending) + name, b""
        return text + _characters(pending)


def _characters(data: bytes) -> str:
    """Decode whole, or give one U+FFFD a byte, as the engine's library does."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "\ufffd" * len(data)


def _pattern(names: Sequence[str]) -> str:
    words = [name for name in names if len(name) > 1 and not _BYTE.match(name)]
    words.sort(key=lambda word: (-len(word), word))
    return "|".join([*(re.escape(word).replace("\\\n", "\\n") for word in words), r"[\s\S]"])


def tokenizer_json() -> dict[str, Any]:
    """Give the content of tokenizer.json."""
    names = tokens()
    special = [name for name in names if name in SPECIAL or name.startswith("<｜reserved")]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": names.index(name), "content": name, **flags, "special": True} for name in special
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": _pattern(names)},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": True,
            "ignore_merges": True,
            "vocab": {name: index for index, name in enumerate(names)},
            "merges": [],
        },
    }


def tokenizer_config() -> dict[str, Any]:
    """Give the content of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
