"""Judge the GPUs of a host: each way to be unfit is a finding of its own, with its own remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dih20.doctor.registry import Finding
from dih20.hosts.facts import Gpu, HostFacts

if TYPE_CHECKING:
    from dih20.config import HostConfig

_NO_FABRIC = ("n/a", "[n/a]", "not supported", "[not supported]")


def gpu_findings(facts: HostFacts, config: HostConfig) -> Iterator[Finding]:
    """Give the findings about GPUs; a host that declares none gets one that says so."""
    if not config.gpus:
        yield Finding.not_applicable("GPU checks: the host declares gpus: 0")
        return
    yield from _runtime(facts)
    if facts.gpus.fault or not facts.gpus.gpus:
        yield Finding.fail(
            f"nvidia-smi gives no GPU: {facts.gpus.fault or 'it lists none'}",
            expected=f"{config.gpus} GPUs and a driver {config.driver_min} or newer",
            remedy="install or reload the NVIDIA driver on the host; `dmesg | grep -i nvrm` says why it does not load",
        )
        return
    yield from _count(facts, config)
    yield from _driver(facts, config)
    for gpu in facts.gpus.gpus:
        yield from _one_gpu(gpu, facts, config)
    yield from _fabric(facts)


def _runtime(facts: HostFacts) -> Iterator[Finding]:
    engine = facts.engine
    if engine is None or engine.fault:
        return
    if "nvidia" in engine.runtimes or facts.system.gpu_toolkit or engine.has_cdi_gpus:
        yield Finding.ok("the engine can give GPUs to containers")
        return
    yield Finding.fail(
        f"no GPU runtime: the engine knows {', '.join(engine.runtimes) or 'no runtime'}, and no container toolkit "
        "is installed",
        expected="the NVIDIA container toolkit; without it the engine says `could not select device driver`",
        remedy="on the host install nvidia-container-toolkit, run `nvidia-ctk runtime configure --runtime=docker`, "
        "and restart docker",
    )


def _count(facts: HostFacts, config: HostConfig) -> Iterator[Finding]:
    found = len(facts.gpus.gpus)
    if found == config.gpus:
        yield Finding.ok(f"{found} of {config.gpus} GPUs: {facts.gpus.gpus[0].name}")
        return
    yield Finding.fail(
        f"{found} of {config.gpus} GPUs",
        expected=f"gpus: {config.gpus} in configs/hosts/{config.name}.yaml",
        remedy="`dmesg | grep -i xid` on the host shows a GPU that fell off the bus; reboot or repair it, or correct "
        "gpus",
    )


def _driver(facts: HostFacts, config: HostConfig) -> Iterator[Finding]:
    driver = facts.gpus.gpus[0].driver
    if _numbers(driver) < _numbers(config.driver_min):
        yield Finding.fail(
            f"driver {driver}",
            expected=f"{config.driver_min} or newer (driver_min): older ones cannot run this CUDA",
            remedy="upgrade the host's driver, and the fabric manager with it",
        )
    else:
        yield Finding.ok(f"driver {driver}")


def _one_gpu(gpu: Gpu, facts: HostFacts, config: HostConfig) -> Iterator[Finding]:
    if gpu.compute_capability != config.compute_capability:
        yield Finding.fail(
            f"GPU {gpu.index} is a {gpu.name} of compute capability {gpu.compute_capability}",
            expected=f"{config.compute_capability} (compute_capability)",
            remedy="use a host with Hopper GPUs; the wheels hold code for sm_90a only",
        )
    if gpu.is_mig:
        yield Finding.fail(
            f"MIG is on at GPU {gpu.index}",
            expected="MIG off: its slices cannot reach each other's memory",
            remedy=f"on the host run `nvidia-smi -i {gpu.index} -mig 0`, then reset the GPU",
        )
    yield from _health(gpu, facts)
    yield from _business(gpu, facts, config)


def _health(gpu: Gpu, facts: HostFacts) -> Iterator[Finding]:
    remap = next((r for r in facts.row_remaps if r.gpu_uuid == gpu.uuid), None)
    ills: list[str] = []
    if remap and remap.is_pending:
        ills.append("a row remap is pending")
    if remap and remap.has_failed:
        ills.append("a row remap has failed")
    if gpu.uncorrected_errors:
        ills.append(f"{gpu.uncorrected_errors} uncorrected ECC errors since the driver was loaded")
    if ills:
        yield Finding.fail(
            f"GPU {gpu.index} is unhealthy: {', '.join(ills)}",
            expected="no uncorrected error, no pending or failed remap",
            remedy=f"on the host run `nvidia-smi -i {gpu.index} -r` or reboot; if it comes back, have the GPU replaced",
        )


def _business(gpu: Gpu, facts: HostFacts, config: HostConfig) -> Iterator[Finding]:
    holders = [p for p in facts.gpu_processes if p.gpu_uuid == gpu.uuid]
    ours = facts.container(config.container)
    if not holders:
        return
    text = ", ".join(f"pid {p.pid} ({p.name}) holds {p.used_mib} MiB" for p in holders)
    if ours is not None and ours.is_ours and ours.status == "running":
        yield Finding.ok(f"GPU {gpu.index} is in use while our {ours.name} is running: {text}")
        return
    yield Finding.fail(
        f"GPU {gpu.index} is busy: {text}",
        expected="a GPU that nobody uses: the engine takes nearly all of its memory",
        remedy="ask whose process it is, and stop it",
    )


def _fabric(facts: HostFacts) -> Iterator[Finding]:
    """CUDA says error 802 while a GPU has not joined the NVSwitch fabric, though nvidia-smi lists it."""
    gpus = facts.gpus.gpus
    manager, driver = facts.fabric_manager, gpus[0].driver
    service = manager.service if manager else "unknown"
    version = (manager.version if manager else "") or "unknown"
    outside = [
        f"GPU {g.index} {g.fabric_state}/{g.fabric_status}"
        for g in gpus
        if g.fabric_state.lower() not in _NO_FABRIC and not _has_joined(g)
    ]
    has_switch = any(g.fabric_state.lower() not in _NO_FABRIC for g in gpus)
    if outside:
        yield Finding.fail(
            f"CUDA would fail with error 802 (system not yet initialized): {', '.join(outside)}; service "
            f"nvidia-fabricmanager is {service}, its version {version}, the driver's {driver}",
            expected="every GPU Completed/Success, and a fabric manager of the driver's exact version",
            remedy="on the host install the fabric manager of the driver's version, run `systemctl restart "
            "nvidia-fabricmanager`, and see `journalctl -u nvidia-fabricmanager`",
        )
    elif has_switch and version not in ("unknown", driver):
        yield Finding.fail(
            f"the fabric manager is {version}, the driver {driver}; its service is {service}",
            expected="the same version: at the next start it will refuse this driver (CUDA error 802)",
            remedy="on the host install the fabric manager of the driver's version",
        )
    lonely = [
        index
        for index, ways in sorted(facts.links.items())
        if not any(w.startswith("NV") for w in ways)
    ]
    if len(gpus) > 1 and lonely:
        how = ", ".join(f"GPU {i} by {'/'.join(sorted(set(facts.links[i])))}" for i in lonely)
        yield Finding.fail(
            f"without NVLink to any other GPU: {how}; service nvidia-fabricmanager is {service}",
            expected="NV# between all GPUs in `nvidia-smi topo -m`",
            remedy="on the host run `nvidia-smi nvlink --status`, restart nvidia-fabricmanager, then reset the GPU",
        )
    elif not outside and len(gpus) > 1:
        yield Finding.ok("every GPU reaches the others over NVLink")


def _has_joined(gpu: Gpu) -> bool:
    return gpu.fabric_state.lower() == "completed" and gpu.fabric_status.lower() in ("success", "0")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
