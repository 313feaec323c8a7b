"""Ask apt itself which packages are needed, in a private root that leaves this machine's state alone.

The root has its own sources (one mirror, one suite), lists, cache and dpkg status. Of the machine's
apt configuration only how to reach mirrors (Acquire: proxies, timeouts) is taken over; its hooks are not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dih20.errors import LockError
from dih20.index.session import without_password
from dih20.lock.files import LockedFile

_KEYRINGS = {
    "debian": Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    "ubuntu": Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
}
_STANZA_KEYS = ("Package", "Version", "Filename", "Size", "SHA256")


@dataclass(frozen=True, kw_only=True)
class AptRoot:
    """A private apt: its folder, the suite it knows and the architecture it resolves for."""

    folder: Path
    suite: str
    architecture: str
    mirror: str

    @property
    def shown(self) -> str:
        return without_password(self.mirror)

    def set_installed(self, status: str) -> None:
        """Make apt believe that a base holds these packages (the text of its dpkg status file)."""
        (self.folder / "var/lib/dpkg/status").write_text(status)

    def prefer(self, files: Sequence[LockedFile]) -> None:
        """Let these versions win over newer ones, as far as the mirror still has them."""
        pins = [f"Package: {f.name}\nPin: version {f.version}\nPin-Priority: 1001\n" for f in files]
        (self.folder / "etc/apt/preferences").write_text("\n".join(pins))

    def run(self, tool: str, *arguments: str) -> str:
        """Run an apt tool in this root and give what it prints."""
        environment = {**os.environ, "APT_CONFIG": str(self.folder / "apt.conf"), "LC_ALL": "C"}
        done = subprocess.run(
            [tool, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if done.returncode != 0:
            said = [
                ln
                for ln in (done.stderr + done.stdout).splitlines()
                if ln.startswith(("E:", "W:", " "))
            ]
            raise LockError(
                found=f"`{tool} {' '.join(arguments)[:200]}` for {self.suite} exited {done.returncode}: "
                + "\n  ".join(said[-12:] or [done.stderr.strip()[-500:]]),
                expected=f"an answer from the mirror {self.shown}",
                remedy=f"mend what it names; the mirror is chosen under apt: {self.suite}: in configs/mirrors.yaml",
            )
        return done.stdout

    def update(self) -> None:
        """Read the suite's package lists from the mirror; signatures are checked."""
        self.run("apt-get", "update", "-qq", "--error-on=any")

    def closure(self, names: Sequence[str]) -> list[LockedFile]:
        """Give the packages that an install of these names would add, all pinned."""
        out = self.run("apt-get", "install", "-y", "-qq", "--simulate", *names)
        chosen = re.findall(r"^Inst (\S+?)(?::\S+)? (?:\[\S+\] )?\((\S+) ", out, flags=re.M)
        return self.pin([f"{name}={version}" for name, version in chosen])

    def pin(self, chosen: Sequence[str]) -> list[LockedFile]:
        """Give the files of packages written as NAME or NAME=VERSION."""
        if not chosen:
            return []
        stanzas = self.stanzas(chosen)
        wanted = {each.partition("=")[0] for each in chosen}
        if missing := wanted - {s["Package"] for s in stanzas}:
            raise LockError(
                found=f"suite {self.suite} has no package {', '.join(sorted(missing))}",
                expected="names of binary packages in its section main",
                remedy="correct the names in configs/images or in the package list of the base",
            )
        return [self._file(stanza) for stanza in stanzas]

    def stanzas(self, chosen: Sequence[str]) -> list[dict[str, str]]:
        """Give the index entries of packages, one per name, as apt shows them."""
        out = self.run("apt-cache", "show", "--no-all-versions", *chosen)
        found: dict[str, dict[str, str]] = {}
        for text in out.split("\n\n"):
            fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", text, flags=re.M))
            if all(key in fields for key in _STANZA_KEYS):
                found.setdefault(fields["Package"], {**fields, "": text.strip()})
        return [found[name] for name in sorted(found)]

    def _file(self, stanza: dict[str, str]) -> LockedFile:
        return LockedFile(
            name=stanza["Package"],
            version=stanza["Version"],
            filename=stanza["Filename"].rsplit("/", 1)[-1],
            sha256=stanza["SHA256"],
            size_bytes=int(stanza["Size"]),
            kind="deb",
            path=stanza["Filename"],
            suite=self.suite,
        )


@contextmanager
def private_apt(
    suite: str, architecture: str, mirror: str, *, family: str, retries: int = 3
) -> Iterator[AptRoot]:
    """Make a private root with the suite's package lists read; it is removed at the end."""
    for tool in ("apt-get", "apt-cache", "apt-config"):
        if not shutil.which(tool):
            raise LockError(
                found=f"no {tool} on this machine",
                expected="apt, which resolves the apt packages",
                remedy="run `./inv lock` on Debian or Ubuntu; the lock it writes serves every machine",
            )
    keyring = _KEYRINGS[family]
    if not keyring.exists():
        raise LockError(
            found=f"no keyring {keyring}",
            expected=f"the keys that sign {suite}",
            remedy=f"run `apt-get install {keyring.stem}`, then the command again",
        )
    with tempfile.TemporaryDirectory(prefix="dih20-apt-") as name:
        yield prepare_root(
            Path(name),
            suite,
            architecture,
            mirror,
            source=f"[signed-by={keyring}]",
            retries=retries,
        )


def prepare_root(
    folder: Path, suite: str, architecture: str, mirror: str, *, source: str, retries: int = 3
) -> AptRoot:
    """Fill a folder as a private apt root and read the suite's lists; `source` are the source's options."""
    for part in (
        "etc/apt/none",
        "etc/apt/preferences.d",
        "var/lib/apt/lists/partial",
        "var/cache/apt/archives/partial",
        "var/lib/dpkg",
        "log",
    ):
        (folder / part).mkdir(parents=True)
    (folder / "etc/apt/sources.list").write_text(f"deb {source} {mirror} {suite} main\n")
    (folder / "apt.conf").write_text(_configuration(folder, architecture, retries))
    root = AptRoot(folder=folder, suite=suite, architecture=architecture, mirror=mirror)
    root.set_installed("")
    root.update()
    return root


def _configuration(folder: Path, architecture: str, retries: int) -> str:
    acquire = subprocess.run(
        ["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True
    ).stdout
    kept = [line for line in acquire.splitlines() if "IndexTargets" not in line]
    return "\n".join(
        [
            f'Dir "{folder}/";',
            'Dir::Etc "etc/apt/";',
            'Dir::Etc::Parts "none/";',
            'Dir::Etc::SourceParts "none/";',
            f'Dir::State "{folder}/var/lib/apt/";',
            f'Dir::State::status "{folder}/var/lib/dpkg/status";',
            f'Dir::Cache "{folder}/var/cache/apt/";',
            f'Dir::Log "{folder}/log/";',
            f'APT::Architecture "{architecture}";',
            f'APT::Architectures {{"{architecture}";}};',
            'APT::Install-Recommends "false";',
            'APT::Sandbox::User "root";',
            'Acquire::Languages "none";',
            *kept,
            f'Acquire::Retries "{retries}";',
            "",
        ]
    )
