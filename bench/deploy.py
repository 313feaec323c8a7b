"""Measure a deploy on this machine: bytes that travel, rate against scp, and the time of a no-op.

    .venv/bin/python bench/deploy.py            writes bench/results/cpu/deploy.json

It rehearses first (two private engines, a private sshd on loopback), then measures on what stands
there. Medians; the rates depend on the machine, the bytes do not.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dih20.config import HostConfig, load_host, load_image
from dih20.console import Console
from dih20.deploy.gathering import find_image
from dih20.deploy.start import deploy_to
from dih20.hosts.ssh import connect
from dih20.hosts.transfer import upload
from dih20.image import standin
from dih20.image.archive import ImageLayers, chain_ids, image_layers, make_delta, write_archive
from dih20.image.engine import connect as connect_engine
from dih20.lock import Lock
from dih20.paths import REPOSITORY, build_dir
from dih20.rehearse.rehearsal import Rehearsal
from dih20.rehearse.settings import HOST, Places
from dih20.rehearse.stages import Stages

if TYPE_CHECKING:
    import docker

REPEATS = 5
FILE_MIB = 256
RESULT = REPOSITORY / "bench" / "results" / "cpu" / "deploy.json"


def main() -> None:
    ui = Console()
    with ExitStack() as cleanup:
        rehearsal = Rehearsal(ui=ui, stages=Stages(ui), places=Places.default(), vendor=False)
        rehearsal.run(cleanup)
        result = {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "commit": _commit(),
            "machine": {"cores": os.cpu_count(), "system": platform.platform(terse=True)},
            "delta": measure_delta(ui),
            "transfer": measure_transfer(ui, load_host(HOST)),
            "noop_deploy_s": times(lambda: deploy_to(ui, HOST)),
        }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def times(work: Callable[[], object]) -> dict[str, Any]:
    """Give the median and each of REPEATS runs, in seconds."""
    seconds = []
    for _ in range(REPEATS):
        started = time.monotonic()
        work()
        seconds.append(round(time.monotonic() - started, 3))
    return {"median": statistics.median(seconds), "runs": seconds}


def measure_delta(ui: Console) -> dict[str, Any]:
    """Give the bytes of a full `docker save`, of the same with zstd, and of what a host with the base gets."""
    client, lock = connect_engine(), Lock.load()
    wanted = find_image(client, lock, load_image().base)
    base = image_layers(client, standin.load(ui, client, lock))
    saved = sum(len(chunk) for chunk in client.api.get_image(wanted.tag))
    return {
        "layers": len(wanted.layers.diff_ids),
        "docker_save_bytes": saved,
        "full_archive_zstd_bytes": _packed(client, wanted.layers, frozenset()),
        "delta_on_base_bytes": _packed(client, wanted.layers, frozenset(chain_ids(base.diff_ids))),
        "noop_bytes": 0,
    }


def _packed(client: docker.DockerClient, layers: ImageLayers, held: frozenset[str]) -> int:
    path = build_dir() / "bench" / "archive.tar.zst"
    path.parent.mkdir(parents=True, exist_ok=True)
    size = write_archive(client, make_delta(layers, held), path).size_bytes
    path.unlink()
    return size


def measure_transfer(ui: Console, host: HostConfig) -> dict[str, Any]:
    """Give MB/s of scp, of our stream, and of a whole put with the host's sha256."""
    local, remote = build_dir() / "bench" / "random.bin", f"{host.work_dir}/bench"
    local.write_bytes(os.urandom(FILE_MIB << 20))
    scp = [
        "scp",
        "-q",
        "-P",
        str(host.port),
        "-i",
        str(host.identity_file),
        "-o",
        "IdentitiesOnly=yes",
    ]
    scp += ["-o", f"UserKnownHostsFile={host.known_hosts}", str(local)]
    rates: dict[str, list[float]] = {"scp": [], "ours": [], "ours_verified": []}
    with connect(host) as runner:
        runner.run(["mkdir", "-p", remote])
        command = [*scp, f"{host.user}@{host.address}:{remote}/scp.bin"]
        for i in range(REPEATS):  # in turn, so that a busy moment of the machine meets all three
            rates["scp"].append(_rate(lambda: subprocess.run(command, check=True)))
            ours, put = f"{remote}/ours.bin", f"{remote}/put-{i}.bin"
            rates["ours"].append(_rate(partial(upload, runner, local, ours, 0, lambda _: None)))
            rates["ours_verified"].append(_rate(partial(runner.put, local, put, ui)))
            runner.run(["rm", "--", put])  # a file that lies there already is not sent again
        runner.run(["rm", "-r", remote])
    local.unlink()
    medians = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    ratio = round(medians["ours"] / medians["scp"], 2)
    return {"file_mib": FILE_MIB, "median_mb_per_s": medians, "ours_against_scp": ratio}


def _rate(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return (FILE_MIB << 20) / 1e6 / (time.monotonic() - started)


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
