"""The canary: a tiny trained checkpoint in the released format, with right answers.

It has every kind of layer that the release has, and the engine's loader accepts it. Its answers
turn "does this stack work" into a table; docs/canary.md says what it knows and how it was trained.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "data"
