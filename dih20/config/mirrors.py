"""Where downloads go through: package indexes, apt mirrors, a proxy, a CA bundle."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from dih20.config.reading import Section


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https", "file") or not (parts.netloc or parts.path):
        raise ValueError(f"{text!r} is not an http, https or file URL")
    return text.rstrip("/")


Url = Annotated[str, AfterValidator(_url)]


class PipMirrors(Section):
    """Package indexes in the order they are asked; none means: as pip itself is configured."""

    indexes: tuple[Url, ...] = ()


class Mirrors(Section):
    """Where downloads go through. configs/mirrors.yaml is the manual of these keys."""

    pip: PipMirrors = PipMirrors()
    apt: Annotated[dict[str, tuple[Url, ...]], BeforeValidator(lambda apt: apt or {})] = Field(
        default_factory=dict
    )
    proxy: Url | None = None
    ca_bundle: str | None = None
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    retries: Annotated[int, Field(ge=0, le=20)] = 3
