"""What `inv doctor` asks about configuration files."""

from __future__ import annotations

from collections.abc import Iterator

from dih20.doctor.registry import Finding, Subject, check


@check("configuration", where="local")
def configuration_is_readable(subject: Subject) -> Iterator[Finding]:
    """Every file under configs/ is one its model accepts."""
    from dih20.config import load_engine, load_host, load_image, load_mirrors
    from dih20.paths import configs_dir

    load_engine()
    load_mirrors()
    hosts = sorted((configs_dir() / "hosts").glob("*.yaml"))
    images = sorted((configs_dir() / "images").glob("*.yaml"))
    for path in hosts:
        load_host(str(path))
    for path in images:
        load_image(str(path))
    yield Finding.ok(f"{len(hosts)} hosts, {len(images)} images, engine, mirrors")
