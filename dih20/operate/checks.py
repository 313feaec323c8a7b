"""What `inv doctor --host` looks at in the container: the same findings that stop a start."""

from __future__ import annotations

from collections.abc import Iterator

from dih20.doctor.registry import Finding, Subject, check


@check("serving", where="host")
def container_can_serve(subject: Subject) -> Iterator[Finding]:
    """Judge tools and the folder of compiled kernels, where the engine is what is served."""
    from dih20.config import load_engine
    from dih20.hosts.docker_cli import docker_environment, find_docker
    from dih20.operate.fitness import CACHE, TOOLS, tool_findings
    from dih20.operate.serving import load_serving

    if load_serving().engine != "deepinfer":
        yield Finding.not_applicable("configs/serve.yaml serves without kernels of the engine")
        return
    docker = find_docker(subject.runner, subject.host).path
    cache = load_engine().environment.get(CACHE, "")
    name = subject.host.container
    said = subject.runner.run(
        [docker or "docker", "exec", name, "/bin/sh", "-c", TOOLS, "sh", cache or "/nonexistent"],
        env=docker_environment(subject.host),
        check=False,
    )
    if not said.ok:
        yield Finding.not_run(f"no container {name} runs there: {said.last_lines(1)}")
        return
    yield from tool_findings(said.text, cache, subject.host)
