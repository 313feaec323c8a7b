"""SLSA provenance v1 as an in-toto statement: who built a wheel, when and where, out of what."""

from __future__ import annotations

from typing import Any, Final

from dih20.provenance.record import Record

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:dih20:wheel:1"  # docs/reproducible.md describes it
BUILDER: Final = "urn:dih20:build-vendor"


def wheel_statement(
    record: Record, *, filename: str, sha256: str, run: dict[str, Any]
) -> dict[str, Any]:
    """Give the statement for one built wheel.

    Args:
        run: started, finished (ISO 8601), image (id) and lock (identity) of this build.
    """  # fmt: skip
    source = record.source
    dependencies = [
        {"name": source.name, "digest": {_algorithm(source.hash): source.hash}},
        *(
            {"name": entry.filename, "digest": {"sha256": entry.sha256}}
            for entry in record.inputs
            if entry.sha256 and entry.role != "source"
        ),
        *({"name": edit.id, "digest": {"sha256": edit.sha256}} for edit in record.edits),
        {"name": "image", "digest": {"sha256": str(run["image"]).removeprefix("sha256:")}},
    ]
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": filename, "digest": {"sha256": sha256}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"recipe": record.recipe, "lock": run["lock"]},
                "internalParameters": {"identity": record.identity, "parts": record.parts},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {"id": BUILDER},
                "metadata": {
                    "invocationId": f"{record.identity[:12]}-{run['started']}",
                    "startedOn": run["started"],
                    "finishedOn": run["finished"],
                },
            },
        },
    }


def _algorithm(digest: str) -> str:
    """Name the algorithm that a source's hash is of: a commit is 40 digits, a content hash 64."""
    return "gitCommit" if len(digest) == 40 else "sha256"
