"""Facts about this run that belong beside its numbers: card, clocks, versions, commit, date."""

from __future__ import annotations

import datetime
import os
import subprocess
from pathlib import Path

import torch

from h20_ops.errors import DeviceError, EvidenceError

REPOSITORY = Path(__file__).resolve().parents[2]


def require_sm90() -> str:
    """Return the card's name, or say that there is no Hopper GPU here."""
    if not torch.cuda.is_available():
        raise DeviceError(
            "no CUDA device is visible to torch",
            "an SM90 GPU (H20, H100 or H200)",
            "run this on the GPU machine; nvidia-smi shows what it has",
        )
    capability = torch.cuda.get_device_capability()
    if capability != (9, 0):
        raise DeviceError(
            f"{torch.cuda.get_device_name()} of compute capability {capability}",
            "compute capability (9, 0)",
            "run this on an H20, H100 or H200",
        )
    return str(torch.cuda.get_device_name())


def card_slug(card: str) -> str:
    """Turn a card's name into a folder name: "NVIDIA H200" gives "h200"."""
    return card.lower().removeprefix("nvidia ").replace(" ", "-")


def commit_of(given: str) -> str:
    """Return the commit of the tree: the one given, H20_OPS_COMMIT, or what git says."""
    named = given or os.environ.get("H20_OPS_COMMIT", "")
    if named:
        return named
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise EvidenceError(
            f"the commit of this tree is unknown ({error})",
            "a git checkout, or the commit named by --commit or H20_OPS_COMMIT",
            "add --commit $(git rev-parse HEAD), taken where the tree was copied from",
        ) from error
    return shown.stdout.strip()


def now() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def versions() -> dict[str, str]:
    """Return the versions of torch and of the CUDA it was built with."""
    return {"torch": torch.__version__, "cuda": str(torch.version.cuda)}


def clocks_under_load() -> dict[str, float]:
    """Return SM and memory clocks in MHz while matrix products run, and the SM maximum."""
    a = torch.randn((8192, 8192), dtype=torch.bfloat16, device="cuda")
    for _ in range(300):  # around half a second of work, queued before the query
        a @ a
    fields = "clocks.sm,clocks.mem,clocks.max.sm"
    shown = subprocess.run(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "0"],
        capture_output=True,
        text=True,
        check=True,
    )
    torch.cuda.synchronize()
    sm, memory, maximum = (float(x) for x in shown.stdout.strip().split(","))
    return {"sm_mhz": sm, "memory_mhz": memory, "sm_max_mhz": maximum}
