"""`inv serve`, `stop`, `status`, `logs`, `ask`, `rollback`: on this machine, or on a host."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task

_HOST = {"host": "a file in configs/hosts; without it, this machine"}


@task(
    changes=True,
    help={
        **_HOST,
        "port": "port on this machine; 0 for any free one. A host's is in configs/hosts",
        "detach": "leave it running on this machine; without it, until Ctrl-C",
        "canary": "on a host: serve the canary by the reference model instead of configs/serve.yaml",
        "record-answers": "write the ids of this run's known answers to configs/answers.yaml",
    },
)
def serve(
    run: Run,
    host: str = "",
    port: int = 8000,
    detach: bool = False,
    canary: bool = False,
    record_answers: bool = False,
) -> dict[str, Any]:
    """Serve: the canary on this machine, or what configs/serve.yaml says on a host."""
    from dih20.operate import hosted_life, local_life

    if not host:
        return local_life.serve(run.ui, port=port, detach=detach, only_plan=run.plan)
    return hosted_life.serve(run.ui, host, canary=canary, record=record_answers, only_plan=run.plan)


@task(changes=True, help=_HOST)
def stop(run: Run, host: str = "") -> dict[str, Any]:
    """End the server; prove that no process and no GPU memory is left."""
    from dih20.operate import hosted_stop, local_life

    if not host:
        return local_life.stop(run.ui, only_plan=run.plan)
    return hosted_stop.stop(run.ui, host, only_plan=run.plan)


@task(changes=True, help=_HOST)
def rollback(run: Run, host: str) -> dict[str, Any]:
    """Back to the container before this one; it must answer the known questions."""
    from dih20.operate import hosted_life

    return hosted_life.rollback(run.ui, host, only_plan=run.plan)


@task(help=_HOST)
def status(run: Run, host: str = "") -> dict[str, Any]:
    """What a server does: phase, time, identity, queue, last error."""
    from dih20.operate import state

    return state.status(run.ui, host)


@task(
    help={
        **_HOST,
        "follow": "go on until Ctrl-C, or until the server ends",
        "rank": "only the lines of this rank of the engine",
        "tail": "how many of the last lines; 0 for all",
    }
)
def logs(
    run: Run, host: str = "", follow: bool = False, rank: int = -1, tail: int = 200
) -> dict[str, Any]:
    """A server's log; known fatal lines are explained."""
    from dih20.operate import state

    return state.logs(run.ui, host, follow=follow, rank=rank if rank >= 0 else None, tail=tail)


@task(help={**_HOST, "question": "what to ask", "max-tokens": "of the answer"})
def ask(run: Run, question: str, host: str = "", max_tokens: int = 64) -> dict[str, Any]:
    """One question to a server; answer and log-probs, judged."""
    from dih20.operate import state

    return state.ask(run.ui, host, question, max_tokens=max_tokens)
