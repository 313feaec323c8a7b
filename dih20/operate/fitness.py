"""Look before a start: what would make it fail is found while the old server still serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dih20.config import HostConfig
from dih20.console import Console
from dih20.deploy.container import RUN_FOLDER
from dih20.doctor.registry import Finding
from dih20.errors import UnfitToServe
from dih20.hosts.facts import gpu
from dih20.hosts.facts.system import listening_ports
from dih20.operate.hosted import HostServer, Session
from dih20.serve.settings import Settings

if TYPE_CHECKING:
    from docker.models.containers import Container

CACHE = "DEEPINFER_JIT_CACHE_DIR"
# $1: the folder of compiled kernels. One line per tool that is there: what it is, and where.
TOOLS = """
PATH=$PATH:/usr/local/cuda/bin
for tool in nvcc cuobjdump; do
    found=$(command -v "$tool") && echo "$tool=$found"
done
for tool in "${CXX:-c++}" g++ clang++; do
    found=$(command -v "$tool") && echo "c++=$found" && break
done
mkdir -p -- "$1" 2>/dev/null && : >"$1/.write-test" 2>/dev/null && rm -f -- "$1/.write-test" && echo "cache=$1"
true
"""
_MENDS = {
    "nvcc": "the CUDA toolkit: build the image on a base that has it, then deploy",
    "cuobjdump": "the CUDA toolkit's binary utilities: build the image on a base that has them, then deploy",
    "c++": "g++: add it to apt in configs/images/di-h20.yaml, build and deploy",
}


def require_fit(
    ui: Console,
    candidate: HostServer,
    settings: Settings,
    *,
    old: HostServer | None,
    going_back: bool = False,
) -> None:
    """Raise UnfitToServe that lists everything in the way of a start; nothing is stopped for it.

    Args:
        going_back: the container served before, so that limits of its own are no reason against it.
    """
    with ui.step("check", f"container {candidate.name} before the start") as step:
        findings = list(_findings(candidate, settings, old, going_back=going_back))
        failed = [finding for finding in findings if finding.status == "fail"]
        step.note = f"{len(findings)} things looked at"
    for finding in findings:
        if finding.status != "ok":
            ui.line(f"  {finding.status}: {finding.found}")
    if failed:
        raise UnfitToServe(
            found=f"{candidate.name} on {candidate.where} cannot serve: "
            + "; ".join(f.found for f in failed),
            expected="; ".join(f.expected for f in failed),
            remedy="; ".join(dict.fromkeys(f.remedy for f in failed)),
        )


def _findings(
    candidate: HostServer, settings: Settings, old: HostServer | None, *, going_back: bool
) -> Iterator[Finding]:
    session = candidate.session
    yield from creation_findings(candidate.made, session.host, going_back=going_back)
    if settings.engine == "deepinfer":
        folder = settings.environment.get(CACHE, "")
        said = _output(candidate.made, ["/bin/sh", "-c", TOOLS, "sh", folder or "/nonexistent"])
        yield from tool_findings(said, folder, session.host)
    if settings.host not in ("127.0.0.1", "::1") and settings.tokens_file is None:
        yield Finding.warn(
            f"it will listen on {settings.host} and ask nobody for a token",
            expected="bind: 127.0.0.1, or tokens_file, in configs/serve.yaml",
            remedy="set one of them, unless the network around the host is trusted",
        )
    yield from _port(session, old)
    if session.host.gpus and old is None:
        yield from _gpus(session)


def creation_findings(
    made: Container, host: HostConfig, *, going_back: bool = False
) -> Iterator[Finding]:
    """Judge what is fixed when a container is created; an older one may have other log limits, but must have some."""
    attributes: Mapping[str, Any] = made.attrs
    settings = attributes["HostConfig"]
    again = f"needs re-create: run `./inv deploy --host {host.name} --replace`"
    if settings.get("Init") is not True:
        yield Finding.fail(
            "the container has no init process: ended workers would stay as zombies",
            expected="Init: true",
            remedy=again,
        )
    wanted = {"max-size": host.log.max_size, "max-file": str(host.log.max_file)}
    log = settings.get("LogConfig") or {}
    limits = log.get("Config") or {}
    if log.get("Type") != "json-file" or limits != wanted:
        say = Finding.warn if going_back and wanted.keys() <= limits.keys() else Finding.fail
        yield say(
            f"the container's log is {log.get('Type')} with {limits or 'no limit'}",
            expected=f"json-file with {wanted}, as configs/hosts/{host.name}.yaml says",
            remedy=f"log limits are fixed when a container is created: {again}",
        )
    if not any(m.get("Destination") == RUN_FOLDER for m in attributes.get("Mounts") or []):
        yield Finding.fail(
            f"the container has no {RUN_FOLDER}: it was made by an older version of this tool",
            expected="a container whose own command is the server",
            remedy=again,
        )
    yield Finding.ok("init, log limits and run folder as wanted")


def tool_findings(said: str, cache: str, host: HostConfig) -> Iterator[Finding]:
    """Judge what the container said of its tools: kernels are compiled at the first request."""
    found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    for tool, mend in _MENDS.items():
        if tool in found:
            yield Finding.ok(f"{tool}: {found[tool]}")
        else:
            yield Finding.fail(
                f"no {tool} in the container; kernels are compiled at the first request",
                expected=mend.partition(":")[0],
                remedy=mend.partition(": ")[2],
            )
    if not cache:
        yield Finding.fail(
            f"{CACHE} is not set: compiled kernels would be lost with the container",
            expected="a folder on a mount",
            remedy=f"set {CACHE} under environment: in configs/engine.yaml",
        )
        return
    if "cache" not in found:
        yield Finding.fail(
            f"the folder of compiled kernels, {cache}, cannot be written to",
            expected="a folder that the container may write to",
            remedy=f"correct its owner or {CACHE} in configs/engine.yaml",
        )
    holders = [m for m in host.mounts if f"{cache}/".startswith(f"{m.container}/")]
    if not holders:
        yield Finding.fail(
            f"the folder of compiled kernels, {cache}, lies inside the container and ends with it",
            expected=f"a folder below one of the mounts: {', '.join(m.container for m in host.mounts) or 'none'}",
            remedy=f"correct {CACHE} in configs/engine.yaml",
        )


def _port(session: Session, old: HostServer | None) -> Iterator[Finding]:
    """Say who listens on the port: nobody, or the server that is about to be stopped."""
    taken = listening_ports().ask(session.runner)
    if taken is not None and session.port not in taken:
        yield Finding.ok(f"port {session.port} is free")
        return
    ours = old.settings().get("instance") if old else None
    reply = old.endpoint.get("/version") if old else None
    if reply is not None and ours and reply.values.get("instance") == ours:
        yield Finding.ok(f"port {session.port} is that of {old.name if old else ''}")
        return
    if old is not None and reply is None:
        yield Finding.ok(f"port {session.port} is listened on, and {old.name} runs")
        return
    if taken is None:
        yield Finding.not_run(f"{session.host.name} does not say which ports are listened on")
        return
    who = ["sh", "-c", 'ss -Hltnp "sport = :$1" 2>/dev/null', "sh", str(session.port)]
    listening = " ".join(session.runner.run(who, check=False).text.split())[:200]
    yield Finding.fail(
        f"port {session.port} on {session.host.name} is taken: {listening or 'by whom, is not known'}",
        expected="a free port: another server's 200 must not pass for this one's",
        remedy=f"stop it, or change ports in configs/hosts/{session.host.name}.yaml",
    )


def _gpus(session: Session) -> Iterator[Finding]:
    holders = gpu.processes().ask(session.runner)
    if holders:
        text = ", ".join(f"pid {p.pid} ({p.name}) holds {p.used_mib} MiB" for p in holders)
        yield Finding.fail(
            f"GPUs of {session.host.name} are busy: {text}",
            expected="GPUs that nobody uses: the engine takes nearly all of their memory",
            remedy="ask whose process it is, and stop it",
        )


def _output(made: Container, argv: list[str]) -> str:
    done: Any = made.exec_run(argv)
    return str(done.output.decode("utf-8", "backslashreplace"))
