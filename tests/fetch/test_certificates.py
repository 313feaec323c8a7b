"""Certificates are checked: a private authority counts only when its bundle is named."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dih20.console import Console
from dih20.errors import FetchError
from dih20.fetch import cached, fetch_files
from dih20.lock import LockedFile
from tests.index.fixtures import StartIndex, mirrors_to


@pytest.fixture
def own_certificate(tmp_path: Path) -> Path:
    """A self-signed certificate for 127.0.0.1 and its key, in one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "private authority")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "own.pem"
    pem.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return pem


FILE = LockedFile(
    name="thing",
    version="1.0",
    filename="thing-1.0-py3-none-any.whl",
    sha256=hashlib.sha256(b"content").hexdigest(),
    size_bytes=7,
    kind="wheel",
)


def test_an_unknown_authority_is_refused(
    start_index: StartIndex, own_certificate: Path, ui: Console
) -> None:
    index = start_index(certificate=own_certificate)
    index.add("thing", FILE.filename, b"content")
    with pytest.raises(FetchError) as fault:
        fetch_files(ui, [FILE], mirrors_to(index, retries=0))
    assert "the certificate was not accepted" in fault.value.found
    assert "ca_bundle" in fault.value.remedy
    assert index.log == []


def test_a_named_bundle_is_enough(
    start_index: StartIndex, own_certificate: Path, ui: Console
) -> None:
    index = start_index(certificate=own_certificate)
    index.add("thing", FILE.filename, b"content")
    fetch_files(ui, [FILE], mirrors_to(index, ca_bundle=str(own_certificate)))
    assert cached(FILE).read_bytes() == b"content"


def test_a_bundle_that_is_not_there_is_an_error_and_not_a_fallback(
    start_index: StartIndex, ui: Console
) -> None:
    index = start_index()
    index.add("thing", FILE.filename, b"content")
    with pytest.raises(FetchError, match="no CA bundle at /nowhere"):
        fetch_files(ui, [FILE], mirrors_to(index, ca_bundle="/nowhere/ca.pem"))
    assert index.log == []
