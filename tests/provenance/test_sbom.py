"""Bills of materials against the validator of the library that writes them; statements against their form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from dih20.lock import Lock
from dih20.provenance.sbom import as_json, image_bom, wheel_bom
from dih20.provenance.statement import wheel_statement
from tests.provenance.records import record_for

VALIDATOR = JsonStrictValidator(SchemaVersion.V1_6)


def _faults(text: str) -> list[str]:
    return [str(fault) for fault in VALIDATOR.validate_str(text, all_errors=True) or ()]


@pytest.mark.parametrize("name", ["deepinfer", "h20_probe"])
def test_the_bill_of_a_wheel_is_valid_and_lists_every_input(name: str, tmp_path: Path) -> None:
    record = record_for(name)
    text = as_json(wheel_bom(record, "1.0"))
    assert _faults(text) == []
    bill = json.loads(text)
    refs = {component["bom-ref"] for component in bill["components"]}
    wanted = {f"{entry.role}:{entry.filename}" for entry in record.inputs if entry.role != "source"}
    assert wanted | {"source"} <= refs
    assert {f"edit:{edit.id}" for edit in record.edits} <= refs
    assert bill["metadata"]["timestamp"].startswith("2026-01-01T00:00:00")
    assert text == as_json(wheel_bom(record, "1.0")), "the same bill is the same text"


def test_the_bill_of_an_image_is_valid_and_lists_every_locked_file() -> None:
    lock = Lock.load()
    base = lock.base("stand-in")
    files = [*lock.debs("stand-in"), lock.nccl(), *lock.requirements(base.python_tag)]
    text = as_json(image_bom(base, "a" * 64, files))
    assert _faults(text) == []
    bill = json.loads(text)
    hashes = {h["content"] for c in bill["components"] for h in c.get("hashes", ())}
    assert {file.sha256 for file in [*base.packages, *files]} == hashes
    assert "pkg:deb/debian/" in text


def test_a_bill_that_breaks_the_schema_is_noticed(tmp_path: Path) -> None:
    bill = json.loads(as_json(wheel_bom(record_for("h20_ops"), "1.0")))
    bill["components"][0]["type"] = "no such type"
    assert _faults(json.dumps(bill))


def test_a_statement_names_the_wheel_and_all_that_went_into_it(tmp_path: Path) -> None:
    record = record_for("deepinfer")
    run = {
        "started": "2026-11-29T19:00:00+00:00",
        "finished": "2026-11-29T19:10:00+00:00",
        "image": "sha256:" + "1" * 64,
        "lock": "2" * 64,
    }
    made = wheel_statement(record, filename="a.whl", sha256="3" * 64, run=run)
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    assert made["subject"] == [{"name": "a.whl", "digest": {"sha256": "3" * 64}}]
    definition, details = (made["predicate"][key] for key in ("buildDefinition", "runDetails"))
    assert set(definition) == {"buildType", "externalParameters", "internalParameters", "resolvedDependencies"}  # fmt: skip
    digests = {d["name"]: d["digest"] for d in definition["resolvedDependencies"]}
    assert digests["deepinfer"] == {"sha256": record.source.hash}
    assert digests["image"] == {"sha256": "1" * 64}
    assert {edit.id for edit in record.edits} <= digests.keys()
    assert all(len(value) in (40, 64) for d in digests.values() for value in d.values())
    assert details["metadata"]["startedOn"] == run["started"]
    json.dumps(made)


def test_a_git_source_is_a_commit_in_the_statement(tmp_path: Path) -> None:
    record = record_for("h20_ops")
    source = record.source.model_copy(update={"kind": "git", "hash": "c" * 40})
    run = {"started": "a", "finished": "b", "image": "sha256:" + "1" * 64, "lock": "2" * 64}
    made = wheel_statement(record.model_copy(update={"source": source}), filename="a.whl", sha256="3" * 64, run=run)  # fmt: skip
    (first, *_) = made["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert first["digest"] == {"gitCommit": "c" * 40}
