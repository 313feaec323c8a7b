"""Engram's compressed vocabulary: tokens that differ in case, accents or width share one id."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import torch

_REPLACEMENT = "\ufffd"
_BLANKS = re.compile(r"[ \t\r\n]+")
# What the engine's library strips. str.strip() also takes U+001C..U+001F, which it leaves.
_WHITE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


def compressed_key(text: str, name: str) -> str:
    """Give what tokens of one compressed id have in common.

    Args:
        text: the token decoded alone.    name: its spelling in the vocabulary.
    """
    if _REPLACEMENT in text:
        return name
    plain = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    plain = "".join(char for char in plain if unicodedata.category(char) != "Mn")
    plain = "".join(char.lower() for char in plain)
    plain = _BLANKS.sub(" ", plain)
    if plain != " ":
        plain = plain.strip(_WHITE)
    return plain or text


def compressed_ids(texts: Sequence[str], names: Sequence[str]) -> torch.Tensor:
    """Number the keys in the order they first appear: int64, (vocab,).

    Args:
        texts: every token decoded alone, in the order of ids.    names: their spellings.
    """
    seen: dict[str, int] = {}
    keys = (compressed_key(text, name) for text, name in zip(texts, names, strict=True))
    return torch.tensor([seen.setdefault(key, len(seen)) for key in keys], dtype=torch.int64)
