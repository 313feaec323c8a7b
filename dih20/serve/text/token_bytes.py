"""What bytes each token stands for, read from a tokenizer.json.

Byte-level and byte-fallback decoders give every token the same bytes wherever it stands, so text
can be decoded token by token at the cost of one look-up. Decoders that look at their neighbours
are refused at start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from dih20.errors import ConfigError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def token_bytes(tokenizer: dict[str, Any]) -> list[bytes]:
    """Give the bytes of every id; special tokens have none.

    Args:
        tokenizer: the content of a tokenizer.json.
    """
    decode = _decoder(tokenizer.get("decoder"))
    names: dict[int, str] = {id: name for name, id in _vocab(tokenizer["model"])}
    found = {id: decode(name) for id, name in names.items()}
    for entry in tokenizer.get("added_tokens") or []:
        found[entry["id"]] = b"" if entry.get("special") else entry["content"].encode()
    return [found.get(id, b"") for id in range(max(found, default=-1) + 1)]


def _vocab(model: dict[str, Any]) -> Iterator[tuple[str, int]]:
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        yield from vocab.items()
    else:  # a unigram model lists [token, score]
        for id, (name, _) in enumerate(vocab):
            yield name, id


def _decoder(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    parts = decoder.get("decoders", [decoder]) if decoder else []
    kinds = [part["type"] for part in parts]
    unknown = set(kinds) - {"ByteLevel", "ByteFallback", "Fuse", "Replace", "Strip"}
    if unknown:
        raise ConfigError(
            found=f"tokenizer.json: decoder {', '.join(sorted(unknown))}",
            expected="ByteLevel, or ByteFallback with Replace, Fuse and Strip",
            remedy="serve a checkpoint whose tokenizer decodes tokens independently",
        )
    if "ByteLevel" in kinds:
        return _byte_level
    spellings = [
        (part["pattern"]["String"], part["content"]) for part in parts if part["type"] == "Replace"
    ]

    def spelled(name: str) -> bytes:
        if "ByteFallback" in kinds and (match := _BYTE.match(name)):
            return bytes([int(match[1], 16)])
        for old, new in spellings:
            name = name.replace(old, new)
        return name.encode()

    return spelled


def _printable_bytes() -> dict[str, int]:
    """Give the characters by which byte-level vocabularies spell bytes.

    Printable Latin-1 stands for itself; the others follow from U+0100 on, in order.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(value): value for value in plain}
    others = [value for value in range(256) if value not in set(plain)]
    return table | {chr(0x100 + place): value for place, value in enumerate(others)}


_SPELLED = _printable_bytes()


def _byte_level(name: str) -> bytes:
    try:
        return bytes(_SPELLED[character] for character in name)
    except KeyError:  # an added token, in plain text
        return name.encode()
