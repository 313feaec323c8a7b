"""Other platforms answer too: shared code may ask any of them."""


class Platform:
    is_sm90: bool = False
    """Compute capability 9 (Hopper)."""
