"""A private Docker engine: its own data, sockets and containerd namespace, beside any that runs.

Neither bridge nor iptables are touched: builds run without network, and the rehearsed container
uses the host's, as on a real host.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dih20.errors import RehearsalFailed
from dih20.rehearse.processes import Server

if TYPE_CHECKING:
    import docker


class PrivateEngine:
    """A dockerd with its data under `root`; kept between runs unless `fresh`.

    Example:
        with PrivateEngine("builder", cache / "builder") as engine:
            engine.client().images.list()
    """

    def __init__(
        self, name: str, root: Path, *, fresh: bool = False, start_timeout_s: float = 60
    ) -> None:
        self.name, self.root, self._fresh, self._timeout_s = name, root, fresh, start_timeout_s
        self._server: Server | None = None
        self._clients: list[docker.DockerClient] = []

    @property
    def url(self) -> str:
        return f"unix://{self._run}/docker.sock"

    def __enter__(self) -> PrivateEngine:
        self.root.mkdir(parents=True, exist_ok=True)
        self._take_root()
        data = self.root / "data"
        if self._fresh:
            _unmount_below(data)
            shutil.rmtree(data, ignore_errors=True)
        # Sockets live under a short path of their own: a socket path may have 107 bytes at most.
        self._run = Path(tempfile.mkdtemp(prefix="dih20-", dir="/run"))
        argv = ["dockerd", "--host", self.url, "--data-root", str(data)]
        argv += ["--exec-root", str(self._run / "exec"), "--pidfile", str(self._run / "docker.pid")]
        # mkdtemp's names may end in _, which containerd does not take.
        namespace = f"dih20-{self._run.name.encode().hex()}"
        argv += ["--containerd-namespace", namespace, "--bridge", "none", "--iptables=false"]
        argv += [
            "--containerd-plugins-namespace",
            f"{namespace}-plugins",
            "--ip-forward=false",
        ]
        argv += ["--config-file", str(self._empty_config()), "--log-level", "warn"]
        try:
            self._server = Server(
                argv,
                log=self.root / "dockerd.log",
                name=f"the {self.name} engine",
                keeps=[
                    self._guard
                ],  # a run that is killed leaves the engine seconds in which it ends
            )
            self._server.wait_until(self._answers, self._timeout_s)
        except BaseException:
            self.close()
            raise
        return self

    def _take_root(self) -> None:
        self._guard = (self.root / "in-use").open("w")
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as busy:
            self._guard.close()
            raise RehearsalFailed(
                found=f"the {self.name} engine's data in {self.root} is used by another run, or by the engine of one that was killed",
                expected="one run at a time",
                remedy="wait for the other run and its engine to end, or give this one its own cache with DI_CACHE",
            ) from busy

    def _empty_config(self) -> Path:
        """A config of our own, so that the machine's /etc/docker/daemon.json does not apply."""
        config = self._run / "daemon.json"
        config.write_text("{}\n")
        return config

    def _answers(self) -> bool:
        import docker
        from docker.errors import DockerException

        try:
            client = docker.DockerClient(base_url=self.url, timeout=5)
        except DockerException:
            return False
        try:
            return bool(client.ping())
        except DockerException:
            return False
        finally:
            client.close()

    def client(self, timeout_s: int = 600) -> docker.DockerClient:
        """Give an SDK client for this engine; closed with the engine."""
        import docker

        client = docker.DockerClient(base_url=self.url, timeout=timeout_s)
        self._clients.append(client)
        return client

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine and remove all it made outside its data folder."""
        for client in self._clients:
            client.close()
        if self._server is not None:
            self._server.stop(timeout_s=40)
        _unmount_below(self.root)
        _unmount_below(self._run)
        shutil.rmtree(self._run, ignore_errors=True)
        fcntl.flock(self._guard, fcntl.LOCK_UN)  # also for what the engine may have left running
        self._guard.close()


def _unmount_below(folder: Path) -> None:
    """Detach mounts that a stopped engine left behind, deepest first."""
    prefix = f"{folder}/"
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((m for m in mounts if m.startswith(prefix)), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
