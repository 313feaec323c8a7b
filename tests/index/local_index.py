"""A package index, apt mirror, proxy and TLS server on loopback, with the faults that real ones have."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Served:
    """One file of an index and how it is served.

    Args:
        listed_sha256: what the page says, when it is not the content's.
        trickles: it is sent in small pieces, for ten seconds at most.
        breaks_after: the connection ends after so many bytes, as often as `breaks` says.
    """

    content: bytes
    listed_sha256: str | None = None
    breaks_after: int = 0
    breaks: int = 0
    metadata: bytes | None = None
    trickles: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass
class LocalIndex:
    """What one server serves, and what it was asked.

    Args:
        form: "json" or "html": the kind of project page it has.
        ranges: whether it honours Range.
        projects: project -> file name -> file, listed at /simple/PROJECT/.
        pool: path -> content, for apt.
        answers: path -> (status, headers, body), for anything else.
        needs_token: path -> (token, challenge, answer), as registries do it.
    """

    form: str = "json"
    ranges: bool = True
    projects: dict[str, dict[str, Served]] = field(default_factory=dict)
    pool: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    needs_token: dict[str, tuple[str, str, tuple[int, dict[str, str], bytes]]] = field(
        default_factory=dict
    )
    log: list[tuple[str, str, str]] = field(default_factory=list)
    port: int = 0
    scheme: str = "http"

    @property
    def root(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/simple"

    def add(self, project: str, filename: str, content: bytes, **how: Any) -> Served:
        served = Served(content, **how)
        self.projects.setdefault(project, {})[filename] = served
        return served

    def asked(self, part: str) -> list[tuple[str, str, str]]:
        """Give the requests (method, path, Range) whose path holds a text."""
        return [entry for entry in self.log if part in entry[1]]

    def page(self, project: str) -> bytes:
        files = self.projects[project]
        if self.form == "html":
            links = "".join(
                f'<a href="../../files/{project}/{name}#sha256={f.listed_sha256 or f.sha256}">{name}</a><br/>'
                for name, f in files.items()
            )
            return f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
        entries = [
            {
                "filename": name,
                "url": f"../../files/{project}/{name}",
                "hashes": {"sha256": f.listed_sha256 or f.sha256},
                "size": len(f.content),
                "core-metadata": f.metadata is not None,
            }
            for name, f in files.items()
        ]
        return json.dumps(
            {"meta": {"api-version": "1.1"}, "name": project, "files": entries}
        ).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits for the client's acknowledgement
    index: LocalIndex

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("://", 1)[-1]
        if "://" in self.path:  # as a proxy, the path is a whole address
            path = "/" + path.split("/", 1)[1]
        path = path.split("?", 1)[0]
        self.index.log.append((self.command, path, self.headers.get("Range", "")))
        parts = path.strip("/").split("/")
        if path in self.index.needs_token:
            token, challenge, answer = self.index.needs_token[path]
            if self.headers.get("Authorization") == f"Bearer {token}":
                self._send(answer[0], answer[2], **answer[1])
            else:
                self._send(401, b"", **{"WWW-Authenticate": challenge})
        elif path in self.index.answers:
            status, headers, body = self.index.answers[path]
            self._send(status, body, **headers)
        elif parts[0] == "simple" and len(parts) == 2 and parts[1] in self.index.projects:
            kind = (
                "application/vnd.pypi.simple.v1+json" if self.index.form == "json" else "text/html"
            )
            self._send(200, self.index.page(parts[1]), **{"Content-Type": kind})
        elif parts[0] == "files" and len(parts) == 3:
            self._file(parts[1], parts[2])
        elif path in self.index.pool:
            self._send(200, self.index.pool[path])
        elif parts[0] == "v2":
            error = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
            self._send(404, json.dumps(error).encode(), **{"Content-Type": "application/json"})
        else:
            self._send(404, b"not found")

    def _file(self, project: str, name: str) -> None:
        files = self.index.projects.get(project, {})
        if (
            name.endswith(".metadata")
            and (of := files.get(name.removesuffix(".metadata")))
            and of.metadata
        ):
            self._send(200, of.metadata)
            return
        served = files.get(name)
        if served is None:
            self._send(404, b"not found")
            return
        start, end = 0, len(served.content)
        wanted = self.headers.get("Range", "") if self.index.ranges else ""
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), int(last) + 1 if last else end
        body = served.content[start:end]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body)))
        if wanted:
            self.send_header(
                "Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(served.content)}"
            )
        self.end_headers()
        if self.command == "HEAD":
            return
        if served.breaks > 0 and len(body) > served.breaks_after:
            served.breaks -= 1
            self.wfile.write(body[: served.breaks_after])
            self.close_connection = True
            return
        if served.trickles:
            for start in range(0, len(body), len(body) // 200):
                self.wfile.write(body[start : start + len(body) // 200])
                time.sleep(0.05)
            return
        self.wfile.write(body)

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the log of the index is what tests read."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing when a client hangs up: some tests make it do so."""


@contextmanager
def serving(index: LocalIndex, *, certificate: Path | None = None) -> Iterator[LocalIndex]:
    """Serve an index until the block ends; with a certificate (PEM with key), over TLS."""
    handler = type("Handler", (_Handler,), {"index": index})
    server = _Server(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if certificate:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        index.scheme = "https"
    index.port = server.server_address[1]
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def wheel(
    name: str,
    version: str,
    requires: list[str] | None = None,
    files: dict[str, bytes] | None = None,
) -> bytes:
    """Give the bytes of a small wheel with real metadata; equal arguments give equal bytes, at any time."""
    import io
    import zipfile

    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {each}" for each in requires or []]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, content in (files or {f"{name}/__init__.py": b""}).items():
            archive.writestr(zipfile.ZipInfo(path), content)
        metadata = zipfile.ZipInfo(f"{name}-{version}.dist-info/METADATA")
        archive.writestr(metadata, "\n".join(lines) + "\n")
    return out.getvalue()


def sdist(name: str, version: str, files: dict[str, str]) -> bytes:
    """Give the bytes of a small source archive with one top folder; equal arguments give equal bytes."""
    import gzip
    import io
    import tarfile

    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path, text in files.items():
            info = tarfile.TarInfo(f"{name}-{version}/{path}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()
