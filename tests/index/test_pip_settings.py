"""Which indexes are in force: our file first, then pip's configuration, then pip's own default."""

from __future__ import annotations

import pytest

from dih20.config.mirrors import Mirrors, PipMirrors
from dih20.errors import FetchError
from dih20.index import pip_settings
from dih20.index.pip_settings import effective_settings, parse_configuration


@pytest.fixture
def pip_says(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    def say(text: str) -> None:
        monkeypatch.setattr(pip_settings, "_pip_configuration", lambda: parse_configuration(text))
        monkeypatch.setattr(pip_settings, "_pip_default", lambda: "https://default.invalid/simple/")

    return say


def test_our_own_file_wins_over_pip_s(pip_says) -> None:  # type: ignore[no-untyped-def]
    pip_says("global.index-url='https://pip.invalid/simple'\n")
    settings = effective_settings(Mirrors(pip=PipMirrors(indexes=("http://ours.invalid/simple/",))))
    assert settings.indexes == ("http://ours.invalid/simple",)
    assert settings.source == "configs/mirrors.yaml"


def test_pip_s_environment_wins_over_its_files_and_extra_indexes_come_after(pip_says) -> None:  # type: ignore[no-untyped-def]
    pip_says(
        ":env:.index-url='https://env.invalid/simple/'\n"
        "global.index-url='https://file.invalid/simple'\n"
        "global.extra-index-url='file:///one/simple https://two.invalid/simple'\n"
        "global.cert='/etc/own.pem'\nglobal.proxy='http://proxy.invalid:3128'\n"
    )
    settings = effective_settings(Mirrors())
    assert settings.indexes == (
        "https://env.invalid/simple",
        "file:///one/simple",
        "https://two.invalid/simple",
    )
    assert (settings.source, settings.ca_bundle) == ("pip's configuration", "/etc/own.pem")
    assert settings.proxy == "http://proxy.invalid:3128"


def test_without_configuration_the_default_is_pip_s_own(pip_says) -> None:  # type: ignore[no-untyped-def]
    pip_says("")
    settings = effective_settings(Mirrors())
    assert settings.indexes == ("https://default.invalid/simple",)
    assert settings.source == "pip's own default"


def test_pip_without_any_index_is_an_error(pip_says) -> None:  # type: ignore[no-untyped-def]
    pip_says("global.no-index='true'\n")
    with pytest.raises(FetchError, match="no-index"):
        effective_settings(Mirrors())


def test_pip_really_says_a_default() -> None:
    assert pip_settings._pip_default().startswith("https://")


def test_a_password_is_masked_wherever_an_address_is_shown() -> None:
    from dih20.index.session import without_password

    assert without_password("https://me:secret@host:8443/simple") == "https://***@host:8443/simple"
    assert without_password("https://host/simple") == "https://host/simple"
