"""Read a project's page at a package index: the JSON form, or HTML where an index has only that."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.utils import canonicalize_name

from dih20.errors import FetchError
from dih20.index.session import plain_reason, without_password

if TYPE_CHECKING:
    import requests

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
ACCEPT = f"{JSON_TYPE}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, kw_only=True)
class IndexFile:
    """One file that an index lists."""

    filename: str
    url: str
    sha256: str | None
    index: str
    size_bytes: int | None = None
    requires_python: str | None = None
    yanked: bool = False
    has_metadata: bool = False


@dataclass
class Index:
    """One package index; pages are read once.

    Example:
        Index(url="...", session=open_session(mirrors)).files("deepinfer-gemm")
    """

    url: str
    session: requests.Session
    timeout_s: float = 60.0
    _pages: dict[str, list[IndexFile]] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        return without_password(self.url)

    def files(self, project: str) -> list[IndexFile]:
        """Give the files of a project; an index that does not have the project gives none."""
        name = canonicalize_name(project)
        if name not in self._pages:
            page = f"{self.url}/{name}/"
            local = urlsplit(page).scheme == "file"
            self._pages[name] = self._read_folder(page) if local else self._read_page(page)
        return self._pages[name]

    def _read_folder(self, page: str) -> list[IndexFile]:
        folder = Path(unquote(urlsplit(page).path))
        html = folder / "index.html"
        return self._from_html(html.read_text(), page) if html.is_file() else []

    def _read_page(self, page: str) -> list[IndexFile]:
        import requests

        try:
            answer = self.session.get(page, headers={"Accept": ACCEPT}, timeout=self.timeout_s)
        except requests.exceptions.RequestException as fault:
            raise self._no_page(page, plain_reason(fault)) from fault
        if answer.status_code == 404:
            return []
        if answer.status_code != 200:
            raise self._no_page(page, f"it answered {answer.status_code} {answer.reason}")
        if "json" in answer.headers.get("Content-Type", ""):
            try:
                return self._from_json(answer.json(), answer.url)
            except (ValueError, KeyError, TypeError) as fault:
                raise self._no_page(page, f"its JSON page is not readable: {fault}") from fault
        return self._from_html(answer.text, answer.url)

    def _no_page(self, page: str, why: str) -> FetchError:
        return FetchError(
            found=f"index {self.shown}, page {page.rsplit('/', 2)[1]}: {why}",
            expected="a project page (JSON or HTML of the simple repository API)",
            remedy="check the network, proxy and ca_bundle in configs/mirrors.yaml, or name another index there",
        )

    def _from_json(self, page: dict[str, Any], base: str) -> list[IndexFile]:
        return [
            IndexFile(
                filename=entry["filename"],
                url=urljoin(base, entry["url"]),
                sha256=entry.get("hashes", {}).get("sha256"),
                index=self.shown,
                size_bytes=entry.get("size"),
                requires_python=entry.get("requires-python"),
                yanked=bool(entry.get("yanked")),
                has_metadata=bool(entry.get("core-metadata") or entry.get("dist-info-metadata")),
            )
            for entry in page["files"]
        ]

    def _from_html(self, text: str, base: str) -> list[IndexFile]:
        parser = _Links()
        parser.feed(text)
        files = []
        for attributes in parser.links:
            url, fragment = urldefrag(urljoin(base, attributes.get("href") or ""))
            sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
            files.append(
                IndexFile(
                    filename=unquote(urlsplit(url).path.rsplit("/", 1)[-1]),
                    url=url,
                    sha256=sha256,
                    index=self.shown,
                    requires_python=attributes.get("data-requires-python"),
                    yanked="data-yanked" in attributes,
                    has_metadata=bool(
                        {"data-core-metadata", "data-dist-info-metadata"} & set(attributes)
                    ),
                )
            )
        return files


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links.append(dict(attrs))
