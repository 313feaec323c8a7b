"""Doctor: does the patchset apply to the locked upstream."""

from __future__ import annotations

from collections.abc import Iterator

from dih20.doctor.registry import Finding, Subject, check


@check("patchset", where="local")
def patchset(subject: Subject) -> Iterator[Finding]:
    from dih20.errors import FetchError, LockError
    from dih20.patches.prepare import counted
    from dih20.patches.report import evaluated

    try:
        with evaluated("deepinfer") as found:
            refused = found.refused
            count = counted(found.outcomes)
    except (FetchError, LockError) as error:
        yield Finding.not_run(f"{error.found} ({error.remedy})")
        return
    for outcome in refused:
        assert outcome.error is not None
        yield Finding.fail(
            outcome.error.found, expected=outcome.error.expected, remedy=outcome.error.remedy
        )
    if not refused:
        yield Finding.ok(f"{count} on the locked upstream, none refused")
