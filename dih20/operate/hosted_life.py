"""Serve on a host, and go back to the container before: which one, with what, and under which name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dih20.capacity.rules import require_startable
from dih20.config import EngineConfig, load_engine
from dih20.console import Console
from dih20.deploy.lock import deploy_lock
from dih20.deploy.names import rolled_back
from dih20.errors import FellBack, NotServing, StartFailed, UsageError
from dih20.operate.answers import bring_answers, checkpoint_identity, send_answers
from dih20.operate.changeover import Choice, change_over
from dih20.operate.fitness import require_fit
from dih20.operate.hosted import HostServer, Session, on_host
from dih20.operate.serving import ServeConfig, host_settings, load_serving
from dih20.operate.watch import Ready
from dih20.plan import Action, Plan
from dih20.serve.settings import Settings


def serve(ui: Console, host: str, *, canary: bool, record: bool, only_plan: bool) -> dict[str, Any]:
    """Serve what configs/serve.yaml says in the newest container of a host."""
    serving = load_serving().as_canary() if canary else load_serving()
    if record and serving.model is None:
        raise UsageError(
            found="--record-answers with the canary",
            expected="a model of configs/serve.yaml: the canary's answers are built in",
            remedy="leave one of the two out",
        )
    wanted = _Wanted(serving=serving, engine=load_engine(), record=record)
    wanted.check(ui)
    with on_host(ui, host) as session:
        if not only_plan:
            session.finish_names()
        new = session.container(session.names[2]) or session.require_server()
        old = session.serving()
        steady = old is not None and old.name == new.name and _is_steady(old, wanted.settings(old))
        plan = _plan(session, new, old, steady=steady)
        ui.plan(plan)
        if only_plan:
            return plan.as_dict()
        if steady and old is not None:
            done = "nothing was done"
            if old.name != session.names[0]:
                with deploy_lock(session.runner, session.host.work_dir, f"name {old.name}"):
                    _take_name(session, old)
                done = "it has its name now"
            ui.line(f"{old.name} on {session.host.name} serves this already; {done}")
            return {**_told(session, wanted.settings(old)), "plan": plan.as_dict()}
        with deploy_lock(session.runner, session.host.work_dir, f"serve {new.name}"):
            new.wake()
            settings = wanted.settings(new)
            with _removed_when_it_fails(session, new, old):
                ready = _put_in_service(ui, session, new, old, settings)
            _take_name(session, new)
            recorded = bring_answers(ui, new) if record else ""
        _how_to_ask(ui, session, settings)
        told = _told(session, settings, ready)
        return {**told, "plan": plan.as_dict(), **({"answers": recorded} if recorded else {})}


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """What the configuration asks a server to be."""

    serving: ServeConfig
    engine: EngineConfig
    record: bool

    def check(self, ui: Console) -> None:
        """Refuse what cannot be served before a connection is made."""
        if self.serving.engine == "deepinfer":
            for note in require_startable(self.engine):
                ui.line(f"  note: {note.key}: {note.found}")
        host_settings(self.serving, self.engine, port=1, instance="", labels={}, record=self.record)

    def settings(self, server: HostServer) -> Settings:
        """Give the settings for a container that runs; the instance is left open."""
        return host_settings(
            self.serving,
            self.engine,
            port=server.session.port,
            instance="",
            labels=server.made.labels,
            checkpoint=checkpoint_identity(server, self.serving.model),
            record=self.record,
        )


def _is_steady(server: HostServer, settings: Settings) -> bool:
    """Say whether it serves with these settings, and is ready, and is the one that was started."""
    before = server.settings()
    wanted = {**settings.model_dump(mode="json"), "instance": before.get("instance")}
    ready = server.endpoint.get("/readyz")
    return (
        before == wanted
        and ready is not None
        and ready.status == 200
        and ready.values.get("instance") == before.get("instance")
    )


def _put_in_service(
    ui: Console,
    session: Session,
    new: HostServer,
    old: HostServer | None,
    settings: Settings,
    *,
    going_back: bool = False,
) -> Ready:
    """Check the candidate while the old one serves; then change over."""
    require_fit(ui, new, settings, old=old, going_back=going_back)
    if settings.gate.answers is not None:
        send_answers(new)
    before = None if old is None else Choice(server=old, settings=old.settings())
    if before is not None and not before.settings:
        before = None  # somebody works in it, without a server: there is nothing to go back to
    return change_over(ui, Choice(server=new, settings=settings.model_dump(mode="json")), before)


@contextmanager
def _removed_when_it_fails(
    session: Session, new: HostServer, old: HostServer | None
) -> Iterator[None]:
    """Remove a new container that did not become ready beside one that serves: its evidence is at home."""
    try:
        yield
    except (FellBack, StartFailed):
        is_beside = old is not None and old.name != new.name
        if is_beside and new.name == session.names[2]:
            new.made.remove(force=True)
        raise


def _take_name(session: Session, new: HostServer) -> None:
    """Let the new one take the name; the one that has it is kept as NAME-previous."""
    name, previous, upcoming = session.names
    if new.name == previous:
        _exchange_names(session, new)
    if new.name != upcoming:
        return
    current = session.container(name)
    if current is not None:
        if former := session.container(previous):
            former.made.remove(force=True)
        current.made.rename(previous)
    new.made.rename(name)
    new.made.reload()


def _plan(session: Session, new: HostServer, old: HostServer | None, *, steady: bool) -> Plan:
    actions = [
        Action(verb="check", target=f"container {new.name}: tools, port, limits", needed=not steady)
    ]
    if old is not None:
        actions.append(Action(verb="stop", target=f"container {old.name}", needed=not steady))
    actions += [
        Action(verb="start", target=f"the server in {new.name}", needed=not steady),
        Action(verb="wait", target="until it has answered the known questions", needed=not steady),
    ]
    if new.name != session.names[0]:
        actions.append(Action(verb="keep", target=f"the old container as {session.names[1]}"))
    return Plan(title=f"serve on {session.host.name}", actions=tuple(actions))


def rollback(ui: Console, host: str, *, only_plan: bool) -> dict[str, Any]:
    """Put the container before this one in service again, with the settings it served with."""
    with on_host(ui, host) as session:
        if not only_plan:
            session.finish_names()
        previous = session.names[1]
        new = session.container(previous)
        if new is None or not new.settings():
            raise NotServing(
                found=f"{host} has no {previous}" + ("" if new is None else " that ever served"),
                expected="the container before this one, which `inv serve` keeps",
                remedy=f"`docker ps -a` on the host shows what there is; `./inv deploy --host {host}` makes a new one",
            )
        old = session.serving()
        settings = Settings.model_validate(new.settings())
        plan = _plan(session, new, old, steady=False)
        ui.plan(plan)
        if only_plan:
            return plan.as_dict()
        with deploy_lock(session.runner, session.host.work_dir, f"rollback to {previous}"):
            new.wake()
            ready = _put_in_service(ui, session, new, old, settings, going_back=True)
            _exchange_names(session, new)
        _how_to_ask(ui, session, settings)
        return _told(session, settings, ready)


def _exchange_names(session: Session, new: HostServer) -> None:
    name, previous, _ = session.names
    current = session.container(name)
    if current is not None:
        if former := session.container(rolled_back(name)):
            former.made.remove(force=True)
        current.made.rename(rolled_back(name))
    new.made.rename(name)
    if current is not None:
        current.made.rename(previous)
    new.made.reload()


def _tunnel(session: Session, settings: Settings) -> str:
    """Give the command that brings the server's port here; "" when it listens for everybody."""
    if settings.host != "127.0.0.1":
        return ""
    target, port = session.runner.target, settings.port
    return f"ssh -N -L {port}:127.0.0.1:{port} -p {target.port} {target.user}@{target.address}"


def _how_to_ask(ui: Console, session: Session, settings: Settings) -> None:
    where = f"http://{settings.host}:{settings.port}"
    ui.line(f"{settings.served_name} answers on {session.host.name} at {where}/v1")
    if tunnel := _tunnel(session, settings):
        ui.line(
            "  it listens on the host's own loopback; to reach it from here, leave this running:"
        )
        ui.line(f"  {tunnel}")
        ui.line(f"  then {where}/v1 is the address for clients, and {where}/ shows its state")
    ui.line(f"  ./inv ask --host {session.host.name} '中国的首都是哪里？' needs no tunnel")


def _told(session: Session, settings: Settings, ready: Ready | None = None) -> dict[str, Any]:
    server = session.require_server()
    return {
        "host": session.host.name,
        "url": f"http://{settings.host}:{settings.port}",
        "tunnel": _tunnel(session, settings),
        "model": settings.served_name,
        "container": server.made.id,
        "instance": server.settings().get("instance"),
        **({"ready_s": round(ready.seconds, 2), "gate": ready.gate} if ready else {}),
    }
