"""Which known_hosts line counts for a server, and what is said when none does."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from dih20.errors import HostKeyRefused
from dih20.hosts.known_hosts import HostKey, KnownHosts, entry_name, verify

ED = HostKey(kind="ssh-ed25519", blob=b"ed25519 key of the server")
RSA = HostKey(kind="ssh-rsa", blob=b"rsa key of the server")
OTHER = HostKey(kind="ssh-ed25519", blob=b"a key of someone else")


def line(name: str, key: HostKey) -> str:
    return f"{name} {key.kind} {base64.b64encode(key.blob).decode()}\n"


def hashed(name: str) -> str:
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def known(tmp_path: Path, text: str) -> KnownHosts:
    path = tmp_path / "known_hosts"
    path.write_text(text)
    return KnownHosts.read([path])


def test_port_22_is_filed_under_the_bare_name_and_any_other_in_brackets() -> None:
    assert entry_name("gpu", 22) == "gpu"
    assert entry_name("gpu", 2222) == "[gpu]:2222"


@pytest.mark.parametrize(
    "name", ["[gpu]:2222", hashed("[gpu]:2222"), "[gpu]:*", "other,[gpu]:2222"]
)
def test_an_entry_counts_in_every_way_of_writing_it(tmp_path: Path, name: str) -> None:
    verify(known(tmp_path, line(name, ED)), "gpu", 2222, ED)


def test_two_servers_on_one_address_are_told_apart_by_their_ports(tmp_path: Path) -> None:
    files = known(tmp_path, line("[gpu]:2222", ED) + line("[gpu]:2223", OTHER))
    verify(files, "gpu", 2222, ED)
    verify(files, "gpu", 2223, OTHER)
    with pytest.raises(HostKeyRefused, match="CHANGED"):
        verify(files, "gpu", 2222, OTHER)


def test_the_entry_for_port_22_does_not_count_for_another_port(tmp_path: Path) -> None:
    with pytest.raises(HostKeyRefused) as refused:
        verify(known(tmp_path, line("gpu", ED)), "gpu", 2222, ED)
    assert "unknown" in refused.value.found
    assert "entry for gpu without a port is for port 22" in refused.value.found


def test_an_unknown_key_is_refused_with_fingerprint_place_and_command(tmp_path: Path) -> None:
    with pytest.raises(HostKeyRefused) as refused:
        verify(known(tmp_path, ""), "gpu", 2222, ED)
    assert ED.fingerprint in refused.value.found
    assert "[gpu]:2222" in refused.value.found
    assert f"--accept-host-key {ED.fingerprint}" in refused.value.remedy


def test_a_changed_key_is_refused_with_both_fingerprints_even_when_accepted(tmp_path: Path) -> None:
    files = known(tmp_path, line("[gpu]:2222", ED))
    with pytest.raises(HostKeyRefused) as refused:
        verify(files, "gpu", 2222, OTHER, accept=OTHER.fingerprint)
    assert OTHER.fingerprint in refused.value.found
    assert ED.fingerprint in refused.value.expected
    assert "ssh-keygen -R '[gpu]:2222'" in refused.value.remedy
    assert files.files[0].read_text() == line("[gpu]:2222", ED)


def test_an_accepted_fingerprint_files_exactly_that_key(tmp_path: Path) -> None:
    files = known(tmp_path, "")
    verify(files, "gpu", 2222, ED, accept=ED.fingerprint)
    assert files.files[0].read_text() == line("[gpu]:2222", ED)
    verify(KnownHosts.read(files.files), "gpu", 2222, ED)


def test_an_accepted_fingerprint_lets_no_other_key_in(tmp_path: Path) -> None:
    files = known(tmp_path, "")
    with pytest.raises(HostKeyRefused, match="not the accepted"):
        verify(files, "gpu", 2222, OTHER, accept=ED.fingerprint)
    assert files.files[0].read_text() == ""


def test_a_revoked_key_is_refused_although_another_line_trusts_it(tmp_path: Path) -> None:
    files = known(tmp_path, line("gpu", ED) + "@revoked " + line("gpu", ED))
    with pytest.raises(HostKeyRefused, match="@revoked"):
        verify(files, "gpu", 22, ED)


def test_a_certificate_authority_line_trusts_no_key_by_itself(tmp_path: Path) -> None:
    with pytest.raises(HostKeyRefused, match="unknown"):
        verify(known(tmp_path, "@cert-authority " + line("gpu", ED)), "gpu", 22, ED)


def test_the_key_type_on_file_is_asked_for_first(tmp_path: Path) -> None:
    files = known(tmp_path, line("gpu", RSA))
    offered = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256")
    assert files.preferred("gpu", offered)[:2] == ("rsa-sha2-512", "rsa-sha2-256")
    assert files.preferred("elsewhere", offered) == offered


def test_the_fingerprint_is_the_one_ssh_keygen_prints(tmp_path: Path) -> None:
    import subprocess

    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    kind, blob = key.with_suffix(".pub").read_text().split()[:2]
    listed = subprocess.run(
        ["ssh-keygen", "-lf", str(key)], check=True, capture_output=True, text=True
    )
    assert HostKey(kind=kind, blob=base64.b64decode(blob)).fingerprint == listed.stdout.split()[1]
