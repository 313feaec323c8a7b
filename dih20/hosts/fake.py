"""A runner for tests: list the expected commands with their answers, then see what was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dih20.hosts.runner import Result, checked


@dataclass
class FakeRunner:
    """Answer commands from a list, in any order; a command that nobody expected fails the test.

    Example:
        host = FakeRunner(name="nv-h20").expect(["docker", "version"], stdout="28.2.2")
    """

    name: str = "fake host"
    answers: dict[tuple[str, ...], Result] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def expect(
        self, argv: Sequence[str], *, stdout: str = "", stderr: str = "", exit_code: int = 0
    ) -> FakeRunner:
        self.answers[tuple(argv)] = Result(
            argv=tuple(argv), exit_code=exit_code, stdout=stdout.encode(), stderr=stderr.encode()
        )
        return self

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> Result:
        self.calls.append(tuple(argv))
        if tuple(argv) not in self.answers:
            raise AssertionError(
                f"unexpected command {list(argv)}; expected one of {list(self.answers)}"
            )
        result = self.answers[tuple(argv)]
        return checked(result, self.name) if check else result
