"""The container of a host as a server: reached over SSH, asked through its connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dih20.config import HostConfig, load_host
from dih20.console import Console
from dih20.deploy.container import PERMISSION, SETTINGS, run_folder
from dih20.deploy.names import finish_names
from dih20.deploy.swap import find, start
from dih20.errors import ContainerConflict, NotServing, UsageError
from dih20.hosts.engine_faults import engine_faults
from dih20.hosts.facts import container_names, made_by_us
from dih20.hosts.facts.engine import has_server, is_busy
from dih20.hosts.ssh import SshRunner, connect
from dih20.operate.endpoint import Endpoint, through
from dih20.operate.placed import Life

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

_EVERYWHERE = ("0.0.0.0", "::")
# $1: the file, written whole or not at all
_WRITE = 'cat >"$1.part" && mv -- "$1.part" "$1"'
# $1: the pipe that the container waits at, $2: the name of this start
_PERMIT = """
count=0
while [ ! -p "$1" ]; do
    count=$((count + 1))
    [ "$count" -lt 100 ] || { echo "$1 is not there: the container does not wait" >&2; exit 3; }
    sleep 0.1
done
printf '%s\\n' "$2" >"$1"
"""


@dataclass(frozen=True, kw_only=True)
class Session:
    """A host while a task works on it. Containers that are not ours are never looked at twice."""

    ui: Console
    host: HostConfig
    runner: SshRunner
    client: docker.DockerClient

    @property
    def port(self) -> int:
        return self.host.ports[0]

    @property
    def names(self) -> tuple[str, str, str]:
        """Give the names: in service, the one before it, the one that waits to take its place."""
        return container_names(self.host.container)

    def finish_names(self) -> None:
        """Finish a change of names that broke off."""
        finish_names(self.ui, self.runner, self.client, self.host)

    def container(self, name: str) -> HostServer | None:
        """Give a container of ours by its name."""
        found = find(self.client, name)
        if found is None or found.status == "removing":
            return None
        if not made_by_us(found.labels):
            raise ContainerConflict(
                found=f"container {name} on {self.host.name} is not ours: id {found.short_id}",
                expected=f"the name {name} free, or held by a container that `inv deploy` made",
                remedy=f"ask whose it is; rename it with `docker rename {name} OTHER-NAME`",
            )
        return HostServer(session=self, made=found)

    def serving(self) -> HostServer | None:
        """Give the container that does more than wait; a change-over that broke off left it another name."""
        name, previous, upcoming = self.names
        if (current := self.container(name)) and current.is_serving():
            return current
        for other in (upcoming, previous):
            if (server := self.container(other)) and server.runs_server():
                return server
        return None

    def require_server(self) -> HostServer:
        """Give the container in service, whatever state it is in."""
        if server := self.serving() or self.container(self.names[0]):
            return server
        raise NotServing(
            found=f"{self.host.name} has no container {self.names[0]}",
            expected="one that `inv deploy` made",
            remedy=f"run `./inv deploy --host {self.host.name}`, then `./inv serve --host {self.host.name}`",
        )


@dataclass(frozen=True, kw_only=True)
class HostServer:
    """One container of ours, as a place where a server runs."""

    session: Session
    made: Container
    _tokens: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        return str(self.made.name)

    @property
    def where(self) -> str:
        return self.session.host.name

    @property
    def silence(self) -> str:
        return "starts; nothing answers yet" if self.is_serving() else "waits for ./inv serve"

    @property
    def folder(self) -> str:
        """Give the host's folder that this container has for itself."""
        return run_folder(self.session.host, str(self.made.labels["dih20.config"]))

    @property
    def endpoint(self) -> Endpoint:
        settings = self.settings()
        bind = str(settings.get("host") or "127.0.0.1")
        address = "127.0.0.1" if bind in _EVERYWHERE else bind
        port = int(settings.get("port") or self.session.port)
        token = self._token(settings.get("tokens_file"))
        return through(self.session.runner, port, host=address, token=token)

    def _token(self, file: str | None) -> str:
        """Give a bearer token that the server takes; "" when it asks for none."""
        if not file:
            return ""
        if file not in self._tokens:
            done = self.run(["head", "-n", "1", "--", file])
            if done is None or done.exit_code != 0:
                return ""
            self._tokens[file] = str(done.output.decode("utf-8", "replace")).strip()
        return self._tokens[file]

    def run(self, argv: Sequence[str]) -> Any:
        """Give exit code and output of a command in the container; None when it does not run."""
        return self._while_it_runs(lambda: self.made.exec_run(list(argv)))

    def _while_it_runs(self, ask: Callable[[], Any]) -> Any:
        """Ask a container that runs; None when it does not, also when it ends between two looks."""
        from docker.errors import APIError

        if not self.life().is_running:
            return None
        try:
            return ask()
        except APIError:
            if self.life().is_running:
                raise
            return None

    def others(self) -> list[str]:
        """Say what else of ours stands on the host, and what it is good for."""
        _, previous, upcoming = self.session.names
        told = []
        if self.name != upcoming and self.session.container(upcoming):
            told.append(f"{upcoming} waits for ./inv serve --host {self.where}")
        if self.name != previous and self.session.container(previous):
            told.append(f"{previous} is there for ./inv rollback --host {self.where}")
        return told

    def life(self) -> Life:
        self.made.reload()
        state = self.made.attrs["State"]
        running = bool(state["Running"])
        return Life(is_running=running, exit_code=None if running else int(state["ExitCode"]))

    def is_serving(self) -> bool:
        """Say whether it does more than wait: a server runs in it, or somebody works there."""
        return is_busy([command for _, command in self.processes()])

    def runs_server(self) -> bool:
        return has_server([command for _, command in self.processes()])

    def processes(self) -> list[tuple[int, str]]:
        """Give pid, as the host counts, and command of each process in the container; none once it has ended."""
        top = self._while_it_runs(lambda: self.made.top(ps_args="-eww -o pid,args")) or {}
        return [(int(row[0]), str(row[1])) for row in top.get("Processes") or []]

    def tail(self, lines: int) -> list[str]:
        """Give the last log lines of this start."""
        text = self.made.logs(tail=lines).decode("utf-8", "backslashreplace")
        own = text.rpartition("[launch] waiting")[2] if "[launch] waiting" in text else text
        return own.splitlines()[1 if own is not text else 0 :]

    def lines(self, *, follow: bool) -> Iterator[str]:
        from dih20.image.output_lines import lines_of

        yield from lines_of(self.made.logs(stream=True, follow=follow))

    def settings(self) -> dict[str, Any]:
        """Give the settings that it was last started with; empty when it never was."""
        read = self.session.runner.run(["cat", "--", f"{self.folder}/{SETTINGS}"], check=False)
        values: dict[str, Any] = json.loads(read.text) if read.ok else {}
        return values

    def write(self, name: str, text: bytes) -> None:
        """Put a file into its folder, whole or not at all."""
        argv = ["sh", "-c", _WRITE, "sh", f"{self.folder}/{name}"]
        self.session.runner.run(argv, stdin=text)

    def wake(self) -> None:
        """Start a stopped container: it only waits, until it gets its permission.

        One that was stopped while it waited has left its pipe, and a permission written to that before the
        container has made another would reach nobody.
        """
        if not self.life().is_running:
            self.session.runner.run(["rm", "-f", "--", f"{self.folder}/{PERMISSION}"])
            start(self.made)

    def permit(self, instance: str) -> None:
        """Let the waiting container start its server, under the name of this start."""
        self.session.runner.run(
            ["timeout", "30", "sh", "-c", _PERMIT, "sh", f"{self.folder}/{PERMISSION}", instance]
        )


@contextmanager
def on_host(ui: Console, name: str) -> Iterator[Session]:
    """Give a session on a host; what its engine says against us becomes an error of ours."""
    host = load_host(name)
    if host.network != "host" or not host.ports:
        raise UsageError(
            found=f"configs/hosts/{host.name}.yaml: network {host.network}, ports {list(host.ports)}",
            expected="network: host and one port: the server is reached through the host's own loopback",
            remedy="correct them there, then `./inv deploy --replace`",
        )
    with ExitStack() as ends:
        with ui.step("connect to", host.name) as step:
            runner = ends.enter_context(connect(host))
            step.note = f"{runner.target.user} at {runner.target.place}"
        with engine_faults(runner):
            yield Session(ui=ui, host=host, runner=runner, client=runner.docker())
