"""The docker command of a host: where it is, and which engine it is told to talk to.

A command run over SSH without a terminal gets a short PATH, so docker may be there for a person who
logs in and not for us. It is looked for in that PATH, in the login shell's, and in the usual places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dih20.errors import HostError
from dih20.hosts.runner import Runner

if TYPE_CHECKING:
    from dih20.config import HostConfig
    from dih20.hosts.ssh import SshRunner

_USUAL_PLACES = "/usr/bin /usr/local/bin /snap/bin /opt/docker/bin /opt/bin"
# Prints the path found, or an empty line, then the two PATHs that were searched.
_SEARCH = f"""
found=$(command -v docker)
login=
if [ -z "$found" ]; then
    login=$("${{SHELL:-/bin/sh}}" -lc 'printf "\\n%s" "$PATH"' 2>/dev/null </dev/null | tail -n 1)
    found=$(PATH="$PATH:$login" command -v docker)
fi
for folder in {_USUAL_PLACES} "$HOME/bin" "$HOME/.local/bin"; do
    [ -z "$found" ] && [ -x "$folder/docker" ] && found=$folder/docker
done
printf '%s\\n%s\\n%s\\n' "$found" "$PATH" "$login"
"""
FIND_DOCKER = ("sh", "-c", _SEARCH)


@dataclass(frozen=True, kw_only=True)
class DockerSearch:
    """Where docker was found, or not, and which folders were looked through."""

    path: str
    searched: tuple[str, ...]


def parse_search(text: str) -> DockerSearch:
    """Read what FIND_DOCKER printed."""
    found, own, login = (text.splitlines() + ["", "", ""])[:3]
    folders = [*own.split(":"), *login.split(":"), *_USUAL_PLACES.split()]
    return DockerSearch(path=found, searched=tuple(dict.fromkeys(filter(None, folders))))


def find_docker(runner: Runner, host: HostConfig) -> DockerSearch:
    """Look for docker on a host; a path in its configuration is taken as it is."""
    if host.docker:
        return DockerSearch(path=host.docker, searched=())
    return parse_search(runner.run(FIND_DOCKER).text)


def docker_environment(host: HostConfig) -> dict[str, str]:
    """Give the variables for each docker command on a host: which engine, when it names one."""
    return {"DOCKER_HOST": f"unix://{host.docker_socket}"} if host.docker_socket else {}


def docker_path(runner: SshRunner) -> str:
    """Give the absolute path of docker on a host, or HostError with the folders searched."""
    search = find_docker(runner, runner.host)
    if not search.path:
        raise no_docker(runner.name, search)
    return search.path


def no_docker(name: str, search: DockerSearch) -> HostError:
    return HostError(
        found=f"no docker on {name}; searched {':'.join(search.searched)}",
        expected="the docker command in one of these folders",
        remedy=f"install Docker there, or give its path as `docker:` in configs/hosts/{name}.yaml",
    )
