"""Stop a container's server: TERM, a bounded wait, KILL, and the proof that nothing is left."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from dih20.console import Console
from dih20.deploy.lock import deploy_lock
from dih20.errors import LeftBehind
from dih20.hosts.facts import gpu
from dih20.operate.hosted import HostServer, Session, on_host
from dih20.operate.processes import has_ended
from dih20.plan import Action, Plan
from dih20.serve.settings import Deadlines

_MARGIN_S = 15
_FREED_WITHIN_S = 30.0
_IDLE_MIB = 2048  # what a driver holds of a GPU that nobody uses, with room to spare
_KILLED = 137
# Each pid given, with its start time: "pid starttime state", for those that live.
_STAT = 'for pid; do sed "s/^\\([0-9]*\\) (.*) \\([A-Z]\\)\\(.*\\)/\\1 \\2\\3/" "/proc/$pid/stat" 2>/dev/null; done; true'


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """How a container ended."""

    name: str
    by: str
    seconds: float
    processes: int

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def stop(ui: Console, host: str, *, only_plan: bool) -> dict[str, Any]:
    """Stop the container in service; one that does not run is said to be stopped."""
    with on_host(ui, host) as session:
        if not only_plan:
            session.finish_names()
        server = session.require_server()
        running = server.life().is_running
        plan = Plan(
            title=f"stop {server.name} on {host}",
            actions=(
                Action(verb="stop", target=f"container {server.made.short_id}", needed=running),
                Action(verb="prove", target="that no process and no GPU memory is left"),
            ),
        )
        ui.plan(plan)
        if only_plan:
            return plan.as_dict()
        with deploy_lock(session.runner, session.host.work_dir, f"stop {server.name}"):
            return stop_server(ui, server).as_dict()


def stop_server(ui: Console, server: HostServer) -> Stopped:
    """End a container and prove it."""
    session = server.session
    with ui.step("stop", f"container {server.name}") as step:
        before = _living(session, [pid for pid, _ in server.processes()])
        started = time.monotonic()
        was_running = server.life().is_running
        if was_running:
            server.made.stop(timeout=_patience_s(server))
        seconds = time.monotonic() - started
        code = server.life().exit_code
        killed = was_running and (code == _KILLED or seconds > _patience_s(server))
        by = ("KILL" if killed else "TERM") if was_running else "it did not run"
        step.note = f"{by}, {len(before)} processes"
    with ui.step("prove", "that nothing of it is left") as step:
        step.note = prove_gone(session, before)
    return Stopped(name=server.name, by=by, seconds=round(seconds, 1), processes=len(before))


def _patience_s(server: HostServer) -> int:
    deadlines = Deadlines.model_validate(server.settings().get("deadlines") or {})
    return int(deadlines.drain_timeout_s + deadlines.close_timeout_s) + _MARGIN_S


def _living(session: Session, pids: list[int]) -> dict[int, str]:
    """Give the start time of each process that lives, by pid: a reused pid has another one."""
    if not pids:
        return {}
    text = session.runner.run(["sh", "-c", _STAT, "sh", *map(str, pids)]).text
    rows = [line.split() for line in text.splitlines()]
    return {int(row[0]): row[20] for row in rows if len(row) > 20 and not has_ended(row[1:])}


def prove_gone(session: Session, before: dict[int, str]) -> str:
    """Give what was found in words, or raise LeftBehind that lists what is left."""
    until = time.monotonic() + _FREED_WITHIN_S
    while left := _left(session, before):
        if time.monotonic() > until:
            raise LeftBehind(
                found=f"on {session.host.name}, {_FREED_WITHIN_S:.0f} s after the stop: {'; '.join(left)}",
                expected="no process of the container, and no memory of a GPU in use",
                remedy="see with `ps -o pid,stat,wchan,args -p PID` and `nvidia-smi`; a process in state D waits for the "
                "driver, and only a reset of the GPU or a reboot ends it",
            )
        time.sleep(0.5)
    gpus = f"{session.host.gpus} GPUs are free" if session.host.gpus else "no GPU to look at"
    return f"{len(before)} processes are gone; {gpus}"


def _left(session: Session, before: dict[int, str]) -> list[str]:
    now = _living(session, list(before))
    left = [f"process {pid} lives" for pid, born in now.items() if before[pid] == born]
    if not session.host.gpus:
        return left
    holders = gpu.processes().ask(session.runner)
    left += [
        f"process {p.pid} ({p.name}) holds {p.used_mib} MiB of {p.gpu_uuid}"
        for p in holders
        if p.pid in before
    ]
    busy = {p.gpu_uuid for p in holders}
    return left + [
        f"GPU {g.index} holds {g.used_mib} MiB and nvidia-smi lists no process"
        for g in gpu.gpus().ask(session.runner).gpus
        if g.used_mib > _IDLE_MIB and g.uuid not in busy
    ]
