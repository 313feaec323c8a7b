"""From facts and wishes to a plan: pure, so that --plan, a no-op and the tests are the same code."""

from __future__ import annotations

from typing import Any

from dih20.deploy.container import OWNER
from dih20.deploy.wanted import Wanted
from dih20.errors import ContainerConflict
from dih20.hosts.facts import Container, HostFacts, container_names
from dih20.image.archive import Delta, chain_ids, make_delta, store_kind_of
from dih20.plan import Action, Plan

LOADS = ("engine", "zstd", "connection")


def make_plan(facts: HostFacts | None, wanted: Wanted, *, replace: bool = False) -> Plan:
    """Give every step of a deploy; with facts None, a host that does not answer, none is known.

    A step that facts show to be done is kept in the plan with needed=False and the reason. Raises
    ContainerConflict for nothing: `conflict` says what stands in the way, so that a plan can be
    shown beside it.
    """
    state = _State(facts, wanted)
    actions = [
        *_image(state),
        *_layer(state),
        *_container(state, replace),
    ]
    if facts is not None and any(action.needed is not False for action in actions):
        actions.insert(
            0, Action(verb="lock", target=f"{wanted.host.work_dir} on {wanted.host.name}")
        )
    elif facts is None:
        actions.insert(0, _unknown("lock", f"{wanted.host.work_dir} on {wanted.host.name}"))
    title = (
        f"deploy {wanted.runtime_tag} to {wanted.host.name} as container {wanted.host.container}"
    )
    return Plan(title=title, actions=tuple(actions))


def image_delta(facts: HostFacts, wanted: Wanted) -> Delta:
    """Give the layers that the host's engine lacks."""
    engine = facts.engine
    assert engine is not None, "preflight stops a deploy to a host without an engine"
    held = {chain for image in facts.images for chain in chain_ids(image.layers)}
    return make_delta(wanted.image.layers, held, receiver=store_kind_of(engine.driver_status))


def load_by(facts: HostFacts) -> str:
    """Say how the host unpacks an archive: its engine, its zstd command, or through the connection."""
    if facts.engine is not None and facts.engine.reads_zstd:
        return "engine"
    return "zstd" if facts.system.zstd else "connection"


def conflict(facts: HostFacts, wanted: Wanted, *, replace: bool) -> ContainerConflict | None:
    """Give what stands in the way of the container's name, if anything does."""
    names = container_names(wanted.host.container)
    for name in names:
        found = facts.container(name)
        if found is not None and not found.is_ours:
            owner = _owner(found)
            return ContainerConflict(
                found=f"container {name} on {facts.name} is not ours: id {found.id[:12]}, image {found.image}, {owner}",
                expected=f"the name {name} free, or held by a container that this tool made",
                remedy=f"ask whose it is; if it may go, run `docker rename {name} OTHER-NAME` on the host, then repeat "
                f"(or set container in configs/hosts/{facts.name}.yaml)",
            )
    current, upcoming = (facts.container(names[0]), facts.container(names[2]))
    if current is None or replace or _is_wanted(current, wanted) or current.status == "removing":
        return None
    if facts.is_busy and upcoming is not None and _is_wanted(upcoming, wanted):
        return None  # it was accepted before, and waits
    return ContainerConflict(
        found=f"container {current.name} on {facts.name} ({current.id[:12]}, {current.status}) has another "
        f"configuration: {current.labels.get('dih20.config', 'none')[:12]}",
        expected=f"{wanted.config[:12]}, from the image, wheels and configs of now",
        remedy=f"add --replace: it is then kept stopped as {current.name}-previous",
    )


def _owner(container: Container) -> str:
    owner = container.labels.get("dih20.owner")
    if owner is None:
        return "no dih20.owner label"
    if owner == OWNER:
        return "owner dih20 from its image, but made by hand: no dih20.config label"
    return f"owner {owner}"


class _State:
    """What is known: each question has the answer None while the host has not answered."""

    def __init__(self, facts: HostFacts | None, wanted: Wanted) -> None:
        self.facts, self.wanted = facts, wanted
        self.current = facts.container(wanted.host.container) if facts else None
        self.has_config = self.current is not None and _is_wanted(self.current, wanted)
        self.is_current = (
            self.has_config and self.current is not None and self.current.status == "running"
        )
        self.upcoming = (
            facts.container(container_names(wanted.host.container)[2]) if facts else None
        )
        # One that serves is not interrupted: the new one waits beside it for `inv serve`.
        self.is_beside = facts is not None and facts.is_busy and not self.has_config
        self.is_staged = (
            self.is_beside and self.upcoming is not None and _is_wanted(self.upcoming, wanted)
        )
        self.is_settled = self.is_current or self.is_staged
        self.has_runtime_image = facts is not None and _has_runtime_image(facts, wanted)


def _image(state: _State) -> list[Action]:
    wanted, target = state.wanted, f"image {state.wanted.image.tag}"
    if state.facts is None:
        return [_unknown("transfer", target), _unknown("load", target)]
    if state.is_settled or state.has_runtime_image:
        return [
            _done("transfer", target, "the host runs it" if state.is_current else "the host has it")
        ]
    delta = image_delta(state.facts, wanted)
    count = f"{len(delta.send)} of {len(delta.send) + len(delta.skip)} layers of {target}"
    has_image = any(
        i.layers == wanted.image.layers.diff_ids and wanted.image.tag in i.tags
        for i in state.facts.images
    )
    if has_image:
        return [_done("transfer", target, "the host has it")]
    ways = {
        "engine": "its engine unpacks zstd",
        "zstd": "with its zstd command",
        "connection": "unpacked here: the host has no zstd and an engine before 23",
    }
    way = load_by(state.facts)
    details: dict[str, Any] = {"send": list(delta.send), "skip": list(delta.skip), "by": way}
    return [
        Action(verb="transfer", target=count, why=delta.why, details=details),
        Action(verb="load", target=target, why=ways[way]),
    ]


def _layer(state: _State) -> list[Action]:
    wanted = state.wanted
    if not wanted.has_layer:
        return []
    things = [f"wheel {w.name} {w.version}" for w in wanted.wheels]
    things += [f"engine tree {wanted.tree.identity[:12]}"] if wanted.tree else []
    install = f"{len(wanted.wheels)} wheels" + (" and the engine tree" if wanted.tree else "")
    install += f" as {wanted.runtime_tag}"
    if state.facts is None:
        return [*(_unknown("transfer", t) for t in things), _unknown("install", install)]
    if state.is_settled or state.has_runtime_image:
        return [_done("install", install, "that image stands on the host")]
    return [
        *(Action(verb="transfer", target=t, why="unless the host has it") for t in things),
        Action(verb="install", target=install, why="one layer, without network"),
    ]


def _container(state: _State, replace: bool) -> list[Action]:
    wanted, name = state.wanted, state.wanted.host.container
    last = [
        ("create", f"container {name}"),
        ("start", f"container {name}"),
        ("read back", "limits, mounts and devices"),
        ("check", "probe, NCCL and imports in the container"),
    ]
    if state.facts is None:
        return [_unknown(verb, target) for verb, target in last]
    current = state.current
    if state.is_current:
        done = [
            _done(verb, target, f"running with config {wanted.config[:12]}")
            for verb, target in last
        ]
        return [*done, *_stale(state)]
    if current is None:
        return [Action(verb=verb, target=target) for verb, target in last]
    if state.has_config:
        made = _done(
            "create", f"container {name}", f"config {wanted.config[:12]} is the wanted one"
        )
        rest = (Action(verb=verb, target=target) for verb, target in last[1:])
        return [made, *rest, *_stale(state)]
    if state.is_beside and current.is_ours:
        return _beside(state, current, replace)
    if current.status == "removing":
        first = [
            Action(verb="wait for", target=f"the removal of {name}", why="the engine is at it")
        ]
    elif not current.is_ours:
        first = [
            Action(verb="stop at", target=f"container {current.id[:12]}", why="it is not ours")
        ]
    else:
        why = f"config {current.labels.get('dih20.config', 'none')[:12]} is not the wanted {wanted.config[:12]}"
        first = [
            Action(
                verb="keep",
                target=f"container {current.id[:12]} as {name}-previous",
                why=why if replace else f"{why}; needs --replace",
            )
        ]
    return [*first, *(Action(verb=verb, target=target) for verb, target in last)]


def _stale(state: _State) -> list[Action]:
    """Give the removal of a container that an earlier deploy left waiting, and that nobody wants now."""
    if state.upcoming is None:
        return []
    why = "it waits for `inv serve` with a configuration that is not wanted any more"
    return [Action(verb="remove", target=f"container {state.upcoming.name}", why=why)]


def _beside(state: _State, current: Container, replace: bool) -> list[Action]:
    """Give the steps that put a container beside one that serves, without a word to that one."""
    upcoming = container_names(state.wanted.host.container)[2]
    why = f"it serves; `./inv serve --host {state.wanted.host.name}` changes over"
    kept = _done(
        "leave", f"container {current.id[:12]}", why if replace else f"{why}; needs --replace"
    )
    steps = [
        ("create", f"container {upcoming}"),
        ("start", f"container {upcoming}"),
        ("read back", "limits, mounts and devices"),
        ("check", "NCCL and imports in the container"),
        ("stop", f"container {upcoming}"),
    ]
    if state.is_staged:
        wait = f"config {state.wanted.config[:12]} waits for `inv serve`"
        return [kept, *(_done(verb, target, wait) for verb, target in steps)]
    return [kept, *(Action(verb=verb, target=target) for verb, target in steps)]


def _is_wanted(container: Container, wanted: Wanted) -> bool:
    return container.is_ours and container.labels.get("dih20.config") == wanted.config


def _has_runtime_image(facts: HostFacts, wanted: Wanted) -> bool:
    base = wanted.image.layers.diff_ids
    return any(
        wanted.runtime_tag in image.tags
        and image.layers[: len(base)] == base
        and (not wanted.has_layer or image.labels.get("dih20.wheels") == wanted.wheel_set)
        for image in facts.images
    )


def _done(verb: str, target: str, why: str) -> Action:
    return Action(verb=verb, target=target, why=why, needed=False)


def _unknown(verb: str, target: str) -> Action:
    return Action(verb=verb, target=target, why="the host has not answered", needed=None)
