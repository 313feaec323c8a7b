"""Bills of materials in CycloneDX 1.6, for a wheel out of its record and for an image out of its locked files."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from dih20.lock import Base, LockedFile
from dih20.provenance.record import Input, Record
from dih20.source_date import source_date

if TYPE_CHECKING:
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component

WHEEL_MEMBER: Final = "sboms/dih20.cdx.json"  # below the dist-info folder, where PEP 770 puts them
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_OID, "dih20")
_PURL_TYPES: Final = {"wheel": "pypi", "sdist": "pypi", "deb": "deb"}


def wheel_bom(record: Record, version: str) -> Bom:
    """Give the bill of a wheel: the wheel, and every file that went into its build."""
    from cyclonedx.model.component import ComponentType

    subject = _component(record.recipe["distribution"], version, ref="wheel")
    source = record.source
    parts = [
        _component(source.name, source.version, ref="source", properties={"hash": source.hash})
    ]
    parts += [_of_input(entry) for entry in record.inputs if entry.role != "source"]
    if record.parts["torch"] != "none":
        parts.append(_component("torch", record.parts["torch"].split()[0], ref="torch"))
    parts += [
        _component(edit.id, edit.sha256[:12], ref=f"edit:{edit.id}", kind=ComponentType.FILE, sha256=edit.sha256)
        for edit in record.edits
    ]  # fmt: skip
    return _bom(subject, parts, serial=f"wheel {record.identity}")


def image_bom(base: Base, identity: str, files: Iterable[LockedFile]) -> Bom:
    """Give the bill of a di-h20 image: its base, and every locked file that is in it or that its steps read."""
    from cyclonedx.model.component import ComponentType

    subject = _component("di-h20", identity[:12], ref="image", kind=ComponentType.CONTAINER)
    bottom = _component(
        base.image or f"debian {base.suite}",
        base.digest.removeprefix("sha256:")[:12],
        ref="base",
        kind=ComponentType.CONTAINER,
        properties={"digest": base.digest},
    )
    parts = {file.sha256: _of_file(file) for file in [*base.packages, *files]}
    return _bom(subject, [bottom, *parts.values()], serial=f"image {identity}")


def as_json(bom: Bom) -> str:
    """Give the bill as CycloneDX JSON, the same text for the same bill."""
    from cyclonedx.output.json import JsonV1Dot6

    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _bom(subject: Component, parts: Iterable[Component], *, serial: str) -> Bom:
    from cyclonedx.model.bom import Bom, BomMetaData

    known = list(parts)
    bom = Bom(
        components=known,
        serial_number=uuid.uuid5(_NAMESPACE, serial),
        metadata=BomMetaData(component=subject, timestamp=source_date()),
    )
    bom.register_dependency(subject, known)
    return bom


def _of_input(entry: Input) -> Component:
    ref = f"{entry.role}:{entry.filename}"
    return _component(
        entry.name,
        entry.version,
        ref=ref,
        purl="pypi",
        sha256=entry.sha256,
        properties={"role": entry.role, "filename": entry.filename},
    )


def _of_file(file: LockedFile) -> Component:
    return _component(
        file.name,
        file.version,
        ref=f"{file.kind}:{file.filename}",
        purl=_PURL_TYPES[file.kind],
        sha256=file.sha256,
        properties={"filename": file.filename},
    )


def _component(
    name: str,
    version: str,
    *,
    ref: str,
    kind: object = None,
    purl: str = "",
    sha256: str | None = None,
    properties: dict[str, str] | None = None,
) -> Component:
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    namespace = "debian" if purl == "deb" else None
    return Component(
        name=name,
        version=version,
        bom_ref=ref,
        type=kind if isinstance(kind, ComponentType) else ComponentType.LIBRARY,
        purl=PackageURL(purl, namespace, name, version) if purl else None,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else (),
        properties=[
            Property(name=f"dih20:{key}", value=value) for key, value in (properties or {}).items()
        ],
    )
