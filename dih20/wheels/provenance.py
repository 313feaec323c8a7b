"""Say what a wheel is made from, before it is built: everything that its identity is taken over, in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dih20.lock import Lock, LockedFile
from dih20.provenance.record import MEMBER, Edit, Input, Record, Role, Source
from dih20.provenance.sbom import WHEEL_MEMBER, as_json, wheel_bom
from dih20.wheels.image_facts import ImageFacts
from dih20.wheels.plan import (
    Wanted,
    header_files,
    is_for_every_python,
    recipe_content,
    requirement_files,
    toolkit_files,
)
from dih20.wheels.procedure import fixed_environment
from dih20.wheels.recipes import RecipeSource, fill_in

if TYPE_CHECKING:
    from collections.abc import Iterable

_OF_THE_TREE: Final = "of this tree"  # the version of a folder of this repository is its content


def record_of(lock: Lock, facts: ImageFacts, wanted: Wanted) -> Record:
    """Give the record of a wheel that is about to be built."""
    recipe = wanted.recipe
    assert recipe.source is not None, recipe.name
    own = {name: fill_in(value, wanted.places) for name, value in recipe.build.environment.items()}
    if recipe.build.nvcc and "CPATH" in facts.environment:
        own["CPATH"] = facts.environment["CPATH"]
    files = requirement_files(lock, facts, recipe)
    return Record(
        name=recipe.name,
        identity=wanted.parts.identity,
        parts=wanted.parts.as_dict(),
        source=_source(lock, recipe.source, wanted),
        patchset=wanted.parts.patchset,
        edits=tuple(_edits(lock, recipe.source)),
        recipe=recipe_content(recipe),
        environment=dict(sorted((own | fixed_environment(recipe)).items())),
        inputs=(
            *_source_file(lock, recipe.source),
            *_inputs("requirement", files, named_only=is_for_every_python(recipe)),
            *_inputs("header", header_files(lock, facts, recipe)),
            *_inputs("toolkit", toolkit_files(lock, facts, recipe)),
        ),
    )


def members(record: Record, version: str) -> dict[str, bytes]:
    """Give the files that go into the wheel's dist-info folder."""
    return {
        MEMBER: record.as_bytes(),
        WHEEL_MEMBER: as_json(wheel_bom(record, version)).encode(),
    }


def _source(lock: Lock, source: RecipeSource, wanted: Wanted) -> Source:
    if source.lock is None:
        assert source.path is not None
        return Source(
            kind="folder", name=source.path, version=_OF_THE_TREE, hash=wanted.described.source
        )
    locked = lock.source(source.lock)
    return Source(
        kind=locked.kind, name=locked.name, version=locked.version, hash=wanted.described.source
    )


def _source_file(lock: Lock, source: RecipeSource) -> list[Input]:
    if source.lock is None or (file := lock.source(source.lock).file) is None:
        return []
    return _inputs("source", [file])


def _edits(lock: Lock, source: RecipeSource) -> Iterable[Edit]:
    if source.lock is None:
        return
    from dih20.patches.series import load_for

    for patch in load_for(lock, source.lock):
        text = patch.text.decode("utf-8", errors="backslashreplace")
        yield Edit(id=patch.name, sha256=patch.sha256, text=text)


def _inputs(role: Role, files: Iterable[LockedFile], *, named_only: bool = False) -> list[Input]:
    """Give the files of one role; by name and version alone where the identity knows no more."""
    return [
        Input(
            role=role,
            name=file.name,
            version=file.version,
            filename=f"{file.name}-{file.version}" if named_only else file.filename,
            sha256=None if named_only else file.sha256,
        )
        for file in files
    ]
