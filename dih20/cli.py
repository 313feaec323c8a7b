"""Turn a function into an invoke task with --json, --plan and errors that end in an exit code.

    @task(changes=True, help={"host": "a file in configs/hosts"})
    def deploy(run: Run, host: str) -> dict[str, Any]:
        '''Image delta, wheels, container and checks on a host.'''
        return apply(run.ui, make_plan(...), only_plan=run.plan)

The function gets a Run first; its other parameters become the task's options. What it returns is
the "result" of --json. A ToolError is printed in its three parts and becomes the exit code.
"""

from __future__ import annotations

import inspect
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import invoke

from dih20 import errors
from dih20.paths import build_dir, shown

# annotations as task modules have them: `from __future__ import annotations` leaves them text
_NUMBERS: dict[Any, Callable[[str], Any]] = {"int": int, "float": float, int: int, float: float}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a task: where to print, and whether to stop before anything changes."""

    ui: Any  # dih20.console.Console; imported late, so that listing tasks stays fast
    plan: bool


def task(
    *,
    changes: bool = False,
    name: str | None = None,
    help: dict[str, str] | None = None,
    optional: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Any]:
    """Give a decorator that makes an invoke task; changes=True adds --plan.

    An option named in `optional` may stand without a value, and then is True.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        task_name = name or function.__name__.strip("_").replace("_", "-")
        texts = {**(help or {}), "json": "print one JSON object on stdout, prose on stderr"}
        if changes:
            texts["plan"] = "print what would be done, and stop there"
        body = _body(function, task_name)
        body.__signature__ = _signature(function, changes)  # type: ignore[attr-defined]
        return invoke.task(name=task_name, help=texts, optional=optional)(body)

    return decorate


def _signature(function: Callable[..., Any], changes: bool) -> inspect.Signature:
    own = list(inspect.signature(function).parameters.values())[1:]
    context = inspect.Parameter("c", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    flags = ["plan", "json"] if changes else ["json"]
    extra = [
        inspect.Parameter(flag, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False)
        for flag in flags
    ]
    plain = [
        p.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD, default=_as_text(p)) for p in own
    ]
    return inspect.Signature([context, *plain, *extra])


def _as_text(parameter: inspect.Parameter) -> Any:
    """Give a number's default as text: invoke would end in a trace on an option that is no number."""
    return str(parameter.default) if parameter.annotation in _NUMBERS else parameter.default


def _with_numbers(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Turn the text of number options into numbers; UsageError names the one that is none."""
    values = dict(given)
    for name, parameter in inspect.signature(function).parameters.items():
        number = _NUMBERS.get(parameter.annotation)
        if number is None or not isinstance(values.get(name), str):
            continue
        try:
            values[name] = number(values[name])
        except ValueError as fault:
            raise errors.UsageError(
                found=f"--{name.replace('_', '-')} {given[name]}",
                expected="a whole number" if number is int else "a number",
                remedy="correct the command line",
            ) from fault
    return values


def _body(function: Callable[..., Any], task_name: str) -> Callable[..., Any]:
    def body(
        c: invoke.Context, *args: Any, plan: bool = False, json: bool = False, **kw: Any
    ) -> Any:
        from dih20.console import Console

        ui = Console(as_json=json)
        try:
            result = function(Run(ui=ui, plan=plan), *args, **_with_numbers(function, kw))
        except errors.ToolError as error:
            ui.fail(error)
            ui.finish(task_name, None, error)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            ui.warn("interrupted")
            sys.exit(errors.INTERRUPTED)
        except Exception as fault:  # noqa: BLE001 - the last line of defence: no bare traceback
            report = _internal_fault(task_name, fault)
            ui.fail(report)
            ui.finish(task_name, None, report)
            sys.exit(errors.INTERNAL_FAULT)
        ui.finish(task_name, result)
        return result

    body.__name__ = function.__name__
    body.__doc__ = function.__doc__
    body.__module__ = function.__module__
    return body


def _internal_fault(task_name: str, fault: Exception) -> errors.ToolError:
    logs = build_dir() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"fault-{task_name}-{time.strftime('%Y%m%dT%H%M%S')}.log"
    log.write_text("".join(traceback.format_exception(fault)))
    error = errors.ToolError(
        found=f"a fault in this program: {type(fault).__name__}: {fault}",
        expected="a result, or an error of dih20.errors",
        remedy=f"report it with the trace in {shown(log)}",
    )
    error.exit_code = errors.INTERNAL_FAULT
    return error
