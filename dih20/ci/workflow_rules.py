"""What a workflow must be: keys that GitHub knows, pinned actions, least rights, an end for each job, our tasks only.

The keys and events are those of GitHub's documented syntax (workflow_keys.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from dih20.ci.jobs import Job
from dih20.ci.workflow_keys import EVENTS, FORBIDDEN_EVENTS, JOB_KEYS, STEP_KEYS, TOP_KEYS
from dih20.errors import ConfigError

_PINNED: Final = re.compile(r"^[\w.-]+/[\w./-]+@[0-9a-f]{40}$")
_SAFE_VALUES: Final = frozenset({"github.workflow", "github.ref"})
_EVENT_IS: Final = r"github\.event_name (==|!=) '[a-z_]+'"
_CONDITION: Final = re.compile(rf"^({_EVENT_IS}( \|\| {_EVENT_IS})*)?$")
_EXPRESSION: Final = re.compile(r"\$\{\{(.*?)\}\}", flags=re.S)


class _Loader(yaml.SafeLoader):
    """YAML as GitHub reads it: `on` is a word and not a truth value; a key stands once."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false)$"), list("tf"))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise yaml.constructor.ConstructorError(
            None, None, f"keys that stand twice: {twice}", node.start_mark
        )
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def check_workflow(text: str, jobs: Mapping[str, Job]) -> None:
    """Raise ConfigError that lists every rule which a workflow breaks."""
    if found := list(faults(text, jobs)):
        raise ConfigError(
            found="the workflow breaks its rules:\n  " + "\n  ".join(found),
            expected="what dih20/ci/workflow_rules.py allows",
            remedy="mend ci/jobs.yaml or ci/github/workflow.yaml.j2, then run `./inv ci --render`",
        )


def faults(text: str, jobs: Mapping[str, Job]) -> Iterator[str]:
    """Give a line for each rule that a workflow breaks."""
    try:
        document = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as fault:
        yield f"not YAML: {fault}"
        return
    if not isinstance(document, dict) or not isinstance(document.get("jobs"), dict):
        yield "not a workflow: no mapping with jobs"
        return
    yield from _unknown("the workflow", document, TOP_KEYS)
    yield from _events(document.get("on"))
    yield from _permissions("the workflow", document.get("permissions"), needed=True)
    yield from _expressions(document, "")
    there = document["jobs"]
    if list(there) != list(jobs):
        yield f"jobs are {', '.join(there)}; the table has {', '.join(jobs)}"
    for name, job in there.items():
        if name in jobs:
            yield from _job(name, job, jobs[name])


def _job(name: str, job: dict[str, Any], wanted: Job) -> Iterator[str]:
    where = f"job {name}"
    yield from _unknown(where, job, JOB_KEYS)
    yield from _permissions(where, job.get("permissions"), needed=False)
    minutes = job.get("timeout-minutes")
    if not isinstance(minutes, int) or not 0 < minutes <= 360:
        yield f"{where}: timeout-minutes is {minutes!r}, not a number up to 360"
    if not _CONDITION.match(str(job.get("if", ""))):
        yield f"{where}: if: {job.get('if')!r} asks for more than the event's name"
    runner = job.get("runs-on")
    labels = [runner] if isinstance(runner, str) else list(runner or [])
    if labels != list(wanted.runner):
        yield f"{where}: runs on {labels}; the table says {list(wanted.runner)}"
    if any(label.endswith("-latest") for label in labels):
        yield f"{where}: runner {labels} moves; name a release"
    if "self-hosted" in labels and not _only_by_us(str(job.get("if", ""))):
        yield f"{where}: a pull request could run code on a self-hosted machine"
    for key in ("continue-on-error", "container", "services", "uses"):
        if key in job:
            yield f"{where}: {key} is not for our jobs"
    steps = job.get("steps") or []
    for number, step in enumerate(steps, 1):
        yield from _step(f"{where}, step {number}", step, wanted.as_root)
    calls = [
        step.get("run", "").split("./inv ", 1)[-1]
        for step in steps
        if "./inv " in step.get("run", "")
    ]
    if calls != [f"ci --run {name}"]:
        yield f"{where}: calls {calls}; it must call `./inv ci --run {name}` once"


def _step(where: str, step: dict[str, Any], as_root: bool) -> Iterator[str]:
    yield from _unknown(where, step, STEP_KEYS)
    if ("uses" in step) == ("run" in step):
        yield f"{where}: needs either uses or run"
    if "uses" in step:
        if not _PINNED.match(str(step["uses"])):
            yield f"{where}: {step['uses']} is not pinned by a full commit"
        if (
            "checkout" in str(step["uses"])
            and (step.get("with") or {}).get("persist-credentials") is not False
        ):
            yield f"{where}: the check-out leaves its token behind; persist-credentials must be false"
    if "run" in step:
        command = str(step["run"])
        if "${{" in command:
            yield f"{where}: an expression in run: {command}"
        root = "sudo --preserve-env=CI " if as_root else ""
        allowed = rf"^(sudo ci/host-setup\.sh|{re.escape(root)}\./inv ci --run [a-z][a-z0-9-]*)$"
        if not re.match(allowed, command):
            yield f"{where}: runs `{command}`; only ci/host-setup.sh and `{root}./inv ci --run JOB` are ours"


def _unknown(where: str, mapping: dict[str, Any], known: frozenset[str]) -> Iterator[str]:
    for key in mapping:
        if key not in known:
            yield f"{where}: unknown key {key!r}"


def _events(events: Any) -> Iterator[str]:
    names = [events] if isinstance(events, str) else list(events or [])
    if not names:
        yield "the workflow: no events under on"
    for name in names:
        if name not in EVENTS:
            yield f"on: unknown event {name!r}"
        if name in FORBIDDEN_EVENTS:
            yield f"on: {name} gives foreign code the repository's rights"


def _permissions(where: str, permissions: Any, *, needed: bool) -> Iterator[str]:
    if permissions is None and not needed:
        return
    if not isinstance(permissions, dict):
        yield f"{where}: permissions are {permissions!r}; name them, contents: read at most"
    elif any(
        (name, right) != ("contents", "read") and right != "none"
        for name, right in permissions.items()
    ):
        yield f"{where}: permissions {permissions} are more than contents: read"


def _expressions(value: Any, path: str) -> Iterator[str]:
    """Only names that nobody outside can choose freely may stand in an expression, and only outside of run."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _expressions(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _expressions(inner, f"{path}[{number}]")
    elif isinstance(value, str):
        for expression in _EXPRESSION.findall(value):
            if expression.strip() not in _SAFE_VALUES:
                yield f"{path}: expression {expression.strip()!r} is not one of {', '.join(sorted(_SAFE_VALUES))}"


def _only_by_us(condition: str) -> bool:
    """Say whether a condition lets only a schedule or a start by hand through."""
    parts = [part.strip() for part in condition.split("||")]
    ours = {f"github.event_name == '{event}'" for event in ("schedule", "workflow_dispatch")}
    return bool(parts) and set(parts) <= ours
