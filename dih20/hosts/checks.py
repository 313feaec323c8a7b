"""What `inv doctor --host` looks at: the same findings that stop a deploy."""

from __future__ import annotations

from collections.abc import Iterator

from dih20.doctor.registry import Finding, Subject, check


@check("host", where="host")
def host_is_fit(subject: Subject) -> Iterator[Finding]:
    """Give every preflight finding of a host."""
    from dih20.hosts.facts import gather
    from dih20.hosts.preflight import preflight

    facts = gather(subject.runner, subject.host)
    yield Finding.ok(f"{facts.system.os}, kernel {facts.system.kernel}, as {facts.system.user}")
    yield from preflight(facts, subject.host)
