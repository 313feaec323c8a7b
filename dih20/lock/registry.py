"""Ask an image registry what a tag points to, and whether it still has a digest.

An image named without a registry host is asked for through the Docker engine, which knows its default
registry and mirrors; one with a host (`localhost:5000/team/image:tag`) through the registry's own API.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dih20.errors import FetchError, PinMoved, Unresolved
from dih20.index.session import plain_reason
from dih20.lock.engine import NotReachable, client_faults, engine_client

if TYPE_CHECKING:
    import requests

_MANIFESTS = ", ".join(
    [
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ]
)


class Registry(Protocol):
    """One way to ask for a manifest: by tag or by digest."""

    def digest_of(self, repository: str, reference: str) -> str | None:
        """Give the digest that a reference points to, None when the registry has no such manifest."""
        ...


@dataclass(frozen=True)
class ImageName:
    """host/repository:tag in parts; host is None for the engine's default registry."""

    host: str | None
    repository: str
    tag: str

    @classmethod
    def parse(cls, image: str) -> ImageName:
        name, _, tag = image.rpartition(":")
        first, slash, rest = name.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            return cls(first, rest, tag)
        return cls(None, name, tag)


@dataclass
class HttpRegistry:
    """A registry's HTTP API, with the anonymous token that public registries ask for."""

    host: str
    session: requests.Session
    timeout_s: float = 30.0

    def digest_of(self, repository: str, reference: str) -> str | None:
        import requests

        local = self.host.split(":")[0] in ("localhost", "127.0.0.1", "[::1]")
        url = f"{'http' if local else 'https'}://{self.host}/v2/{repository}/manifests/{reference}"
        try:
            answer = self._get(url)
        except requests.exceptions.RequestException as fault:
            raise NotReachable(f"registry {self.host}: {plain_reason(fault)}") from fault
        if answer.status_code == 404:
            return None
        if answer.status_code != 200:
            raise NotReachable(
                f"registry {self.host} answered {answer.status_code} {answer.reason}"
            )
        return answer.headers.get("Docker-Content-Digest") or _digest(answer.content)

    def _get(self, url: str) -> requests.Response:
        headers = {"Accept": _MANIFESTS}
        answer = self.session.get(url, headers=headers, timeout=self.timeout_s)
        challenge = answer.headers.get("WWW-Authenticate", "")
        if answer.status_code != 401 or not challenge.lower().startswith("bearer"):
            return answer
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        query = {key: fields[key] for key in ("service", "scope") if key in fields}
        token = self.session.get(fields["realm"], params=query, timeout=self.timeout_s).json()
        headers["Authorization"] = f"Bearer {token.get('token') or token.get('access_token')}"
        return self.session.get(url, headers=headers, timeout=self.timeout_s)


@dataclass
class EngineRegistry:
    """The registry as a Docker engine sees it: its default host, its mirrors, its login."""

    client: Any

    def digest_of(self, repository: str, reference: str) -> str | None:
        from docker.errors import APIError

        separator = "@" if reference.startswith("sha256:") else ":"
        try:
            found = self.client.api.inspect_distribution(f"{repository}{separator}{reference}")
        except APIError as fault:
            if fault.status_code == 404:
                return None
            raise NotReachable(
                f"the Docker engine could not ask its registry: {fault.explanation}"
            ) from fault
        except client_faults() as fault:
            raise NotReachable(f"the Docker engine did not answer: {fault}") from fault
        return str(found["Descriptor"]["digest"])


def open_registry(image: str, session: requests.Session) -> Registry:
    """Give the way to ask about an image; NotReachable when there is none."""
    name = ImageName.parse(image)
    if name.host:
        return HttpRegistry(name.host, session)
    return EngineRegistry(engine_client())


def resolve_digest(image: str, session: requests.Session) -> str:
    """Give the digest that an image's tag points to now."""
    name = ImageName.parse(image)
    try:
        digest = open_registry(image, session).digest_of(name.repository, name.tag)
    except NotReachable as fault:
        raise _not_asked(image, str(fault)) from fault
    if digest is None:
        raise Unresolved(
            found=f"the registry has no tag {name.tag!r} of {name.repository}",
            expected=f"{image}, as bases: in configs/images names it",
            remedy="correct image: there, then run `./inv lock --only base`",
        )
    return digest


def check_digest(image: str, locked: str, session: requests.Session) -> None:
    """Raise PinMoved when the tag points elsewhere now, FetchError when the digest is gone."""
    name = ImageName.parse(image)
    try:
        registry = open_registry(image, session)
        there = registry.digest_of(name.repository, locked)
        now = registry.digest_of(name.repository, name.tag)
    except NotReachable as fault:
        raise _not_asked(image, str(fault)) from fault
    if there is None:
        raise FetchError(
            found=f"the registry no longer has {name.repository}@{locked}; tag {name.tag!r} now is {now or 'gone'}",
            expected="the digest in di.lock.yaml; the tag is never taken in its place",
            remedy="load the image from an archive you kept, or run `./inv lock --upgrade vllm` to accept what the tag is now",
        )
    if now != locked:
        raise PinMoved(
            found=f"{image}: lock says {locked}, tag now {now or 'gone'}",
            expected="the digest in di.lock.yaml; builds go on using it",
            remedy="find out why it moved; `./inv lock --upgrade vllm` accepts the new one",
        )


def _not_asked(image: str, why: str) -> Unresolved:
    return Unresolved(
        found=f"could not ask what {image} is: {why}",
        expected="an answer from the image registry",
        remedy="run `./inv lock --only base` where the registry is reachable (an engine with a mirror or proxy, or "
        "image: with a registry host in configs/images), then commit di.lock.yaml",
    )


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()
