"""Connect to a Docker engine, or say within five seconds why that cannot be done.

    client = connect()                              # DOCKER_HOST, else the current docker context
    client = connect("unix:///run/other.sock")      # this engine and no other

The API version is negotiated: what the engine speaks, unless DOCKER_API_VERSION asks for another.
Remote engines are reached through our own SSH connection (dih20.hosts), where host keys are
verified, so an ssh:// address is refused here.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from typing import TYPE_CHECKING, Any

from dih20.errors import EngineError

if TYPE_CHECKING:
    import docker

PROBE_TIMEOUT_S = 4.0  # leaves room for the rest of connect() inside the five seconds promised
CALL_TIMEOUT_S = 900  # a commit of a many-gigabyte layer answers only when it is done
OLDEST_API = (1, 41)  # Engine 20.10, the oldest that this tool was run against

_TOO_OLD = re.compile(r"client version ([\d.]+) is too old\D+([\d.]+)")
_TOO_NEW = re.compile(r"client version ([\d.]+) is too new\D+([\d.]+)")


def connect(url: str | None = None, *, timeout_s: float = CALL_TIMEOUT_S) -> docker.DockerClient:
    """Give a client of the engine at `url`, of DOCKER_HOST, or of the current docker context."""
    import docker

    address, options = _address(url)
    asked = os.environ.get("DOCKER_API_VERSION") or None
    answer = _in_time(lambda: _ask(address, options, asked), address)
    version = asked or answer["ApiVersion"]
    if _numbers(version) < OLDEST_API:
        raise EngineError(
            found=f"the engine at {address} is used with API {version} (Engine {answer.get('Version', '?')})",
            expected=f"API {_dotted(OLDEST_API)} or newer, that is Docker Engine 20.10 or newer",
            remedy="upgrade the engine" if not asked else "unset DOCKER_API_VERSION, then repeat",
        )
    # The SDK wants whole seconds in its annotations and takes any number.
    client: docker.DockerClient = docker.DockerClient(
        base_url=address, version=version, timeout=int(timeout_s), **options
    )
    return client


def _address(url: str | None) -> tuple[str, dict[str, Any]]:
    from docker.utils import kwargs_from_env

    options: dict[str, Any] = {}
    address = url or ""
    if not address and os.environ.get("DOCKER_HOST"):
        options = dict(kwargs_from_env())
        address = str(options.pop("base_url", "") or os.environ["DOCKER_HOST"])
    if not address:
        address = _context_address()
    if address.startswith("ssh://"):
        raise EngineError(
            found=f"the engine address is {address}",
            expected="a unix:// or tcp:// address; SSH goes through configs/hosts, where host keys are verified",
            remedy="unset DOCKER_HOST and name the host instead: --host NAME",
        )
    return address, options


def _context_address() -> str:
    from docker.context import ContextAPI
    from docker.errors import DockerException

    try:
        context = ContextAPI.get_current_context()
    except (DockerException, OSError, ValueError) as broken:
        raise EngineError(
            found=f"the docker context cannot be read: {broken}",
            expected="a usable current context, as `docker context ls` shows it",
            remedy="mend the context, or set DOCKER_HOST",
        ) from None
    host = getattr(context, "Host", None)
    # The SDK spells the default socket with a doubled scheme.
    return str(host).replace("http+unix://", "unix://") if host else "unix:///var/run/docker.sock"


def _in_time(ask: Callable[[], dict[str, Any]], address: str) -> dict[str, Any]:
    """Give what the engine answers, or give up at one deadline over all that is asked of it.

    A socket's timeout is over each wait of its own, and a look-up of the engine's name has none.
    """
    answers: Future[dict[str, Any]] = Future()

    def fulfil() -> None:
        try:
            answers.set_result(ask())
        except BaseException as problem:  # noqa: BLE001  # it belongs to the caller, whatever it is
            answers.set_exception(problem)

    # No pool: its threads are waited for when the program ends.
    threading.Thread(target=fulfil, daemon=True).start()
    try:
        return answers.result(PROBE_TIMEOUT_S)
    except TimeoutError:
        raise _no_answer(address) from None


def _ask(address: str, options: dict[str, Any], asked: str | None) -> dict[str, Any]:
    import docker
    from docker.errors import DockerException

    try:
        with closing(
            docker.DockerClient(
                base_url=address,
                version=asked or "auto",
                timeout=PROBE_TIMEOUT_S,  # type: ignore[arg-type]
                **options,
            )
        ) as client:
            answer: dict[str, Any] = client.api.version(api_version=False)
            lowest = str(answer.get("MinAPIVersion") or "0")
            if asked and _numbers(asked) < _numbers(lowest):
                raise _version_error(address, asked, lowest, "too old", "minimum")
            client.ping()
    except (DockerException, OSError, ValueError) as problem:
        raise _explained(problem, address, asked) from None
    return answer


def _explained(problem: BaseException, address: str, asked: str | None) -> EngineError:
    """Turn what the SDK, requests and urllib3 wrap around a failure into one short error."""
    reason = " ".join(_chain(problem))
    path = address.removeprefix("http+").removeprefix("unix://")
    if match := _TOO_OLD.search(reason):
        return _version_error(address, match[1], match[2], "too old", "minimum")
    if match := _TOO_NEW.search(reason):
        return _version_error(address, match[1], match[2], "too new", "maximum")
    if "below the minimum" in reason or "API versions below" in reason:
        return _version_error(
            address, asked or "?", "1.24 (the Docker SDK's)", "too old", "minimum"
        )
    if "PermissionError" in reason:
        return EngineError(
            found=f"permission denied on the engine socket {path}",
            expected=f"user id {os.geteuid()} may read and write that socket",
            remedy="run as root, or add your user to the group that owns the socket and log in again",
        )
    if "FileNotFoundError" in reason:
        return EngineError(
            found=f"no socket at {path}",
            expected="a running Docker engine there (from DOCKER_HOST, the docker context, or Docker's default)",
            remedy="start the engine (systemctl start docker), or set DOCKER_HOST to where it listens",
        )
    if "ConnectionRefusedError" in reason:
        return EngineError(
            found=f"nothing listens at {address} (connection refused)",
            expected="a running Docker engine there",
            remedy="start the engine (systemctl start docker), or set DOCKER_HOST to where it listens",
        )
    if "Timeout" in reason or "timed out" in reason:
        return _no_answer(address)
    return EngineError(
        found=f"the engine at {address} cannot be used: {problem}",
        expected="an answer to GET /version",
        remedy="check DOCKER_HOST and the engine's log",
    )


def _no_answer(address: str) -> EngineError:
    return EngineError(
        found=f"the engine at {address} did not answer within {PROBE_TIMEOUT_S:g} s",
        expected="an answer to GET /version",
        remedy="look at the engine's log (journalctl -u docker), or set DOCKER_HOST to another engine",
    )


def _version_error(address: str, ours: str, theirs: str, verdict: str, bound: str) -> EngineError:
    return EngineError(
        found=f"client API {ours} is {verdict} for the engine at {address}, whose {bound} is {theirs}",
        expected="an API version that both sides speak",
        remedy="unset DOCKER_API_VERSION, so that the version is negotiated, then repeat",
    )


def _chain(problem: BaseException) -> list[str]:
    """Give class name and text of an exception, of its causes and of exceptions in its arguments."""
    seen: list[str] = []
    todo: list[BaseException] = [problem]
    visited: set[int] = set()
    while todo:
        current = todo.pop()
        if id(current) in visited:
            continue
        visited.add(id(current))
        seen.append(f"{type(current).__name__}: {current}")
        inner = [
            current.__cause__,
            current.__context__,
            getattr(current, "reason", None),
            *current.args,
        ]
        todo.extend(item for item in inner if isinstance(item, BaseException))
    return seen


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)) or (0,)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
