"""A container of a host as a server, where it ends while it is looked at: with a scripted engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, NotFound

from dih20.console import Console
from dih20.errors import NotServing
from dih20.operate.hosted import HostServer, Session


class ScriptedContainer:
    """Runs for a number of looks; the engine refuses what is asked of one that does not run."""

    def __init__(self, looks: int, *, is_broken: bool = False) -> None:
        self.looks, self.is_broken, self.execs = looks, is_broken, 0
        self.name = "di-h20"
        self.attrs: dict[str, Any] = {}
        self.labels = {"dih20.owner": "dih20", "dih20.config": "c" * 64}
        self.status = "running" if looks > 0 else "exited"
        self.events: list[str] = []

    def reload(self) -> None:
        self.attrs = {"State": {"Running": self.looks > 0, "ExitCode": 0}}
        self.looks -= 1

    def start(self) -> None:
        self.events.append("start")

    def top(self, ps_args: str) -> dict[str, Any]:
        self._refuse()
        return {"Processes": [["7", "python3 -m dih20.serve"]]}

    def exec_run(self, argv: list[str]) -> Any:
        self._refuse()
        self.execs += 1
        return SimpleNamespace(exit_code=0, output=b"secret\n")

    def _refuse(self) -> None:
        if self.looks <= 0 or self.is_broken:
            raise APIError("409 Conflict: container di-h20 is not running")


def server(made: ScriptedContainer) -> HostServer:
    runner = SimpleNamespace(run=lambda argv: made.events.append(" ".join(argv)))
    session: Any = SimpleNamespace(runner=runner, host=SimpleNamespace(work_dir="/srv/di"))
    container: Any = made
    return HostServer(session=session, made=container)


def test_a_container_that_ends_between_two_looks_has_no_processes_and_gives_no_token() -> None:
    assert server(ScriptedContainer(1)).processes() == []
    assert not server(ScriptedContainer(1)).is_serving()
    assert server(ScriptedContainer(1))._token("/tokens") == ""


def test_what_the_engine_refuses_of_a_container_that_runs_on_is_an_error() -> None:
    with pytest.raises(APIError):
        server(ScriptedContainer(9, is_broken=True)).processes()


def test_a_token_is_read_once_from_a_container_that_gives_one() -> None:
    made = ScriptedContainer(9)
    asked = server(made)
    assert [asked._token("/tokens") for _ in range(3)] == ["secret"] * 3
    assert made.execs == 1


def test_a_pipe_that_a_stopped_container_left_is_gone_before_the_container_starts() -> None:
    stopped, waiting = ScriptedContainer(0), ScriptedContainer(9)
    server(stopped).wake()
    assert stopped.events == [f"rm -f -- /srv/di/run/{'c' * 12}/permission", "start"]
    server(waiting).wake()
    assert waiting.events == []


def test_a_server_that_a_broken_change_over_left_under_another_name_is_the_one_in_service(
    ui: Console,
) -> None:
    def in_service(**looks: int) -> str:
        made = {f"di-h20{name}": ScriptedContainer(count) for name, count in looks.items()}

        def get(name: str) -> ScriptedContainer:
            if name not in made:
                raise NotFound(name)
            return made[name]

        given: Any = SimpleNamespace(name="h", container="di-h20", containers=None)
        client: Any = SimpleNamespace(containers=SimpleNamespace(get=get))
        session = Session(ui=ui, host=given, runner=given, client=client)
        found: Any = session.require_server().made
        return next(name for name, one in made.items() if one is found)

    assert in_service(**{"": 9, "-previous": 0, "-next": 0}) == "di-h20"
    assert in_service(**{"": 0, "-previous": 0, "-next": 9}) == "di-h20-next"
    assert in_service(**{"": 0, "-previous": 9}) == "di-h20-previous"
    assert in_service(**{"-previous": 0, "-next": 9}) == "di-h20-next"
    assert in_service(**{"": 0, "-previous": 0, "-next": 0}) == "di-h20"
    with pytest.raises(NotServing):
        in_service(**{"-previous": 0})
