"""Say which of several images was built last: all carry the same date, so the engine's own note decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docker.models.images import Image


def newest(images: Sequence[Image]) -> Image:
    """Give the image that got its name last; `inv build-image` names its image each time it is run."""

    def named(image: Image) -> tuple[str, str]:
        when = str((image.attrs.get("Metadata") or {}).get("LastTagTime") or "")
        # An image that came in an archive with its name has the year 1 there.
        return when if when >= "1970" else "", str(image.attrs["Created"])

    return max(images, key=named)
