"""Signatures of known causes: what the first wrong tensor looks like.

causes = diagnose(finding, evidence)   # best first; empty: print NO_SIGNATURE
"""

from __future__ import annotations

from dih20.parity.diagnosis.signatures import diagnose as diagnose

NO_SIGNATURE = "no known signature"
