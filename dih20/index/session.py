"""The HTTP session behind every download: proxy, CA bundle, retries; certificates are always checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from dih20.config.mirrors import Mirrors
from dih20.errors import FetchError

if TYPE_CHECKING:
    import requests


def open_session(mirrors: Mirrors, *, ca_bundle: str | None = None) -> requests.Session:
    """Give a session as configs/mirrors.yaml asks; `ca_bundle` is used where that file names none."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util.retry import Retry

    verify = _bundle(mirrors.ca_bundle or ca_bundle)
    proxies = {"http": mirrors.proxy, "https": mirrors.proxy} if mirrors.proxy else None

    class Session(requests.Session):
        """What is configured wins over the environment, which requests would put first."""

        def request(self, *args: Any, **options: Any) -> requests.Response:
            return super().request(*args, **{"verify": verify, "proxies": proxies, **options})

    session = Session()
    session.headers["User-Agent"] = "dih20"
    session.verify = verify
    retry = Retry(
        total=mirrors.retries,
        backoff_factor=0.3,
        status_forcelist=(429, 502, 503, 504),
        raise_on_status=False,
    )
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    return session


def _bundle(path: str | None) -> str | bool:
    """Give what requests takes as `verify`; requests itself honours REQUESTS_CA_BUNDLE on True."""
    if path is None:
        return True
    file = Path(path).expanduser()
    if not file.exists():
        raise FetchError(
            found=f"no CA bundle at {path}",
            expected="the file or folder that configs/mirrors.yaml (ca_bundle) or pip's configuration names",
            remedy="correct ca_bundle in configs/mirrors.yaml; certificate checks cannot be switched off",
        )
    return str(file)


def without_password(url: str) -> str:
    """Give a URL that can be shown: a user name and password in it are masked."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc="***@" + parts.netloc.rsplit("@", 1)[1]))


def plain_reason(fault: Exception) -> str:
    """Give a failed request's cause in one line, without the layers that libraries wrap around it."""
    import requests

    if isinstance(fault, requests.exceptions.SSLError):
        return f"the certificate was not accepted ({_innermost(fault)})"
    if isinstance(fault, requests.exceptions.ProxyError):
        return f"the proxy did not answer ({_innermost(fault)})"
    if isinstance(fault, requests.exceptions.Timeout):
        return "no answer in time"
    return _innermost(fault)


def _innermost(fault: BaseException) -> str:
    seen: BaseException = fault
    while True:
        inner = (
            getattr(seen, "reason", None) or seen.__cause__ or (seen.args[0] if seen.args else None)
        )
        if not isinstance(inner, BaseException) or inner is seen:
            break
        seen = inner
    return str(seen).split(": ", 1)[-1].strip() or type(seen).__name__
