"""Carry out a deploy: facts -> plan -> print -> apply, in this order and in this file.

Everything that can refuse does so before the first byte is sent; everything that can fail later
leaves the host with the container it had.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.deploy.container import run_folder
from dih20.deploy.inside import Outcome, check_inside, read_back_created, read_back_inside
from dih20.deploy.layer import make_layer
from dih20.deploy.lock import deploy_lock
from dih20.deploy.names import finish_names
from dih20.deploy.plan import conflict, make_plan
from dih20.deploy.shipping import ship_image, ship_tree, ship_wheels
from dih20.deploy.swap import (
    STOP_TIMEOUT_S,
    find,
    keep_evidence,
    remove_upcoming,
    stage,
    start,
    swap,
)
from dih20.deploy.wanted import Wanted
from dih20.errors import ContainerConflict, DeployError, HostError
from dih20.hosts.docker_cli import docker_environment
from dih20.hosts.engine_faults import engine_faults
from dih20.hosts.facts import Container as ContainerFact
from dih20.hosts.facts import HostFacts, container_names, gather
from dih20.hosts.facts.engine import containers
from dih20.hosts.preflight import preflight, require_fit
from dih20.hosts.ssh import SshRunner, connect
from dih20.paths import shown
from dih20.plan import Plan

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container


def deploy(
    ui: Console,
    local: docker.DockerClient,
    wanted: Wanted,
    *,
    only_plan: bool = False,
    replace: bool = False,
    accept_host_key: str = "",
) -> dict[str, Any]:
    """Put what is wanted on its host; gives the plan and what stands there, as plain values."""
    with _reached(ui, wanted, replace, accept_host_key) as (runner, facts):
        if not only_plan:
            facts = _with_names_finished(ui, runner, facts, wanted)
        plan = make_plan(facts, wanted, replace=replace)
        _show_and_refuse(ui, facts, wanted, plan, replace=replace)
        result: dict[str, Any] = {"plan": plan.as_dict(), "image": wanted.runtime_tag}
        if only_plan:
            return result
        if plan.is_noop:
            ui.line(f"{wanted.host.container} on {facts.name} is what is wanted; nothing was done")
            return {
                **result,
                "container": _id(facts, wanted),
                "config": wanted.config,
                "checks": [],
            }
        with deploy_lock(runner, wanted.host.work_dir, f"deploy {wanted.runtime_tag}"):
            _require_unchanged(runner, facts, wanted)
            with engine_faults(runner):
                container, outcomes = _apply(ui, local, runner, facts, wanted, plan)
        ui.line(
            f"{container.name} on {facts.name} has {wanted.runtime_tag} ({container.short_id}, "
            f"config {wanted.config[:12]}) and waits for ./inv serve --host {facts.name}"
        )
        return {
            **result,
            "container": container.id,
            "config": wanted.config,
            "checks": [asdict(outcome) for outcome in outcomes],
        }


@contextmanager
def _reached(
    ui: Console, wanted: Wanted, replace: bool, accept_host_key: str
) -> Iterator[tuple[SshRunner, HostFacts]]:
    """Give a connection and the facts; a host that does not answer still gets its plan shown."""
    with ExitStack() as ends:
        try:
            with ui.step("connect to", wanted.host.name) as step:
                runner = ends.enter_context(connect(wanted.host, accept_host_key=accept_host_key))
                step.note = f"{runner.target.user} at {runner.target.place}"
            with ui.step("read", f"facts of {wanted.host.name}") as step:
                facts = gather(runner, wanted.host)
                step.note = facts.system.os
        except HostError:
            ui.plan(make_plan(None, wanted, replace=replace))
            raise
        yield runner, facts


def _with_names_finished(
    ui: Console, runner: SshRunner, facts: HostFacts, wanted: Wanted
) -> HostFacts:
    """Give the facts after a change of names that had broken off is finished; a plan alone leaves it."""
    host = wanted.host
    if not facts.containers or facts.container(host.container) is not None:
        return facts
    with engine_faults(runner):
        if not finish_names(ui, runner, runner.docker(), host):
            return facts
    return gather(runner, host)


def _show_and_refuse(
    ui: Console, facts: HostFacts, wanted: Wanted, plan: Plan, *, replace: bool
) -> None:
    """Show plan and findings, and refuse here what must not be begun."""
    findings = preflight(facts, wanted.host)
    ui.plan(plan)
    for finding in findings:
        if finding.status != "ok":
            ui.line(f"  {finding.status}: {finding.found}")
    in_the_way = conflict(facts, wanted, replace=replace)
    if in_the_way is not None:
        raise in_the_way
    require_fit(findings, wanted.host.name)


def _require_unchanged(runner: SshRunner, facts: HostFacts, wanted: Wanted) -> None:
    """Raise when another deploy has ended between our look at the host and our lock."""
    names = container_names(wanted.host.container)
    fact = containers(facts.docker.path, docker_environment(wanted.host), names)
    if _identities(fact.ask(runner)) != _identities(facts.containers):
        raise ContainerConflict(
            found=f"the containers on {facts.name} have changed since the plan was made",
            expected="the host that the plan was made for",
            remedy="repeat the command; it makes a new plan",
        )


def _identities(found: tuple[ContainerFact, ...]) -> set[tuple[str, str]]:
    return {(c.name, c.id) for c in found if c.status != "removing"}


def _apply(
    ui: Console,
    local: docker.DockerClient,
    runner: SshRunner,
    facts: HostFacts,
    wanted: Wanted,
    plan: Plan,
) -> tuple[Container, list[Outcome]]:
    pending = {action.verb for action in plan.pending()}
    client = runner.docker()
    if "load" in pending:
        ship_image(ui, local, runner, facts, wanted)
    if "install" in pending:
        ship_wheels(ui, runner, wanted)
        ship_tree(ui, runner, wanted)
        make_layer(ui, client, wanted)
    outcomes: list[Outcome] = []
    beside = facts.is_busy and "create" in pending

    def look_inside(container: Container) -> None:
        read_back_inside(ui, container, wanted, facts.system.shm_bytes)
        outcomes.extend(check_inside(ui, container, wanted, gpus_are_free=not beside))

    if "remove" in pending:
        remove_upcoming(ui, client, wanted.host.container)
    if "start" not in pending:
        container = find(client, wanted.host.container)
        assert container is not None, "the plan found it running"
        return container, outcomes
    spec = wanted.container
    runner.run(["mkdir", "-p", "--", run_folder(wanted.host, wanted.config)])
    if "create" not in pending:
        return _start_again(ui, client, wanted, look_inside), outcomes
    container = (stage if beside else swap)(
        ui,
        client,
        spec,
        before_start=lambda made: read_back_created(ui, made, spec, wanted.host.name),
        after_start=look_inside,
    )
    return container, outcomes


def _start_again(
    ui: Console, client: docker.DockerClient, wanted: Wanted, look_inside: Any
) -> Container:
    """Start the stopped container that is what is wanted; one that fails its checks is stopped again."""
    name = wanted.host.container
    container = find(client, name)
    if container is None:
        raise DeployError(
            found=f"container {name} on {wanted.host.name} is gone since the plan was made",
            expected="the container that the plan would start",
            remedy="repeat the command; it makes a new plan",
        )
    try:
        with ui.step("start", f"container {name}"):
            start(container)
        look_inside(container)
    except BaseException:
        ui.warn(
            f"{name} stays stopped; its log and settings are in {shown(keep_evidence(container, name))}"
        )
        container.stop(timeout=STOP_TIMEOUT_S)
        raise
    container.reload()
    return container


def _id(facts: HostFacts, wanted: Wanted) -> str:
    current = facts.container(wanted.host.container)
    return current.id if current else ""
