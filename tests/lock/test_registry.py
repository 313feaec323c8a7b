"""What a tag points to, asked of a registry on loopback: moved, gone, behind a token, not there."""

from __future__ import annotations

import hashlib

import pytest

from dih20.config.mirrors import Mirrors
from dih20.errors import FetchError, PinMoved, Unresolved
from dih20.index.session import open_session
from dih20.lock.registry import ImageName, check_digest, resolve_digest
from tests.index.fixtures import StartIndex
from tests.index.local_index import LocalIndex

SESSION = open_session(Mirrors(retries=0, timeout_s=3))


def push(registry: LocalIndex, tag: str, manifest: bytes, *, says_digest: bool = True) -> str:
    """Put a manifest under its digest and a tag, as a push does."""
    digest = "sha256:" + hashlib.sha256(manifest).hexdigest()
    headers = {"Docker-Content-Digest": digest} if says_digest else {}
    for reference in (tag, digest):
        registry.answers[f"/v2/team/base/manifests/{reference}"] = (200, headers, manifest)
    return digest


def image(registry: LocalIndex) -> str:
    return f"127.0.0.1:{registry.port}/team/base:v1"


@pytest.mark.parametrize("says_digest", [True, False])
def test_a_tag_gives_its_digest_also_where_the_registry_leaves_it_to_us(
    start_index: StartIndex, says_digest: bool
) -> None:
    registry = start_index()
    digest = push(registry, "v1", b'{"schemaVersion": 2}', says_digest=says_digest)
    assert resolve_digest(image(registry), SESSION) == digest
    check_digest(image(registry), digest, SESSION)


def test_a_tag_that_was_pushed_again_says_what_the_lock_says_and_what_the_tag_is_now(
    start_index: StartIndex,
) -> None:
    registry = start_index()
    before = push(registry, "v1", b"first")
    after = push(registry, "v1", b"second")
    with pytest.raises(PinMoved) as fault:
        check_digest(image(registry), before, SESSION)
    assert f"lock says {before}, tag now {after}" in fault.value.found
    assert fault.value.exit_code == 6


def test_a_digest_that_the_registry_dropped_is_another_error_and_the_tag_does_not_stand_in(
    start_index: StartIndex,
) -> None:
    registry = start_index()
    gone = push(registry, "v1", b"first")
    push(registry, "v1", b"second")
    del registry.answers[f"/v2/team/base/manifests/{gone}"]
    with pytest.raises(FetchError) as fault:
        check_digest(image(registry), gone, SESSION)
    assert f"no longer has team/base@{gone}" in fault.value.found
    assert "the tag is never taken in its place" in fault.value.expected
    assert fault.value.exit_code == 7


def test_the_anonymous_token_of_public_registries_is_fetched(start_index: StartIndex) -> None:
    registry = start_index()
    digest = push(registry, "v1", b"manifest")
    path = "/v2/team/base/manifests/v1"
    granted = registry.answers.pop(path)
    realm = f'Bearer realm="{registry.root}/token",service="reg",scope="repository:team/base:pull"'
    registry.needs_token[path] = ("t0ken", realm, granted)
    registry.answers["/token"] = (200, {}, b'{"token": "t0ken"}')
    assert resolve_digest(image(registry), SESSION) == digest


def test_a_tag_that_does_not_exist_is_named(start_index: StartIndex) -> None:
    registry = start_index()
    with pytest.raises(Unresolved, match="the registry has no tag 'v1' of team/base"):
        resolve_digest(image(registry), SESSION)


def test_a_registry_that_does_not_answer_leads_to_the_command_for_where_it_does() -> None:
    with pytest.raises(Unresolved) as fault:
        resolve_digest("127.0.0.1:9/team/base:v1", SESSION)
    assert (
        "could not ask what 127.0.0.1:9/team/base:v1 is: registry 127.0.0.1:9" in fault.value.found
    )
    assert "`./inv lock --only base`" in fault.value.remedy
    assert fault.value.exit_code == 5


def test_without_an_engine_the_default_registry_is_not_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(Unresolved, match="no Docker engine to ask through"):
        resolve_digest("vllm/vllm-openai:v0.32.0", SESSION)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("vllm/vllm-openai:v0.32.0", (None, "vllm/vllm-openai", "v0.32.0")),
        ("debian:trixie", (None, "debian", "trixie")),
        ("localhost/x:1", ("localhost", "x", "1")),
        ("127.0.0.1:5000/team/base:v1", ("127.0.0.1:5000", "team/base", "v1")),
        (
            "mirror.example.internal/vllm/vllm-openai:v1",
            ("mirror.example.internal", "vllm/vllm-openai", "v1"),
        ),
    ],
)
def test_an_image_name_is_taken_apart_as_engines_do(
    text: str, parts: tuple[str | None, str, str]
) -> None:
    name = ImageName.parse(text)
    assert (name.host, name.repository, name.tag) == parts
