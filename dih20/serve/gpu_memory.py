"""Memory in use on each GPU of this machine, as nvidia-smi says it."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass

QUERY = ("--query-gpu=index,memory.used,memory.total", "--format=csv,noheader,nounits")
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class GpuMemory:
    index: int
    used_bytes: int
    total_bytes: int


def parse_gpu_memory(text: str) -> tuple[GpuMemory, ...]:
    """Read the answer to QUERY; a line that is not three numbers (`[N/A]`, a warning) is left out."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and all(field.isdecimal() for field in fields):
            index, used, total = map(int, fields)
            found.append(GpuMemory(index=index, used_bytes=used * MIB, total_bytes=total * MIB))
    return tuple(found)


async def read_gpu_memory(
    program: str = "nvidia-smi", timeout_s: float = 10.0
) -> tuple[GpuMemory, ...]:
    """Give the memory of every GPU; nothing where there is no nvidia-smi or it does not answer."""
    path = shutil.which(program)
    if path is None:
        return ()
    process = await asyncio.create_subprocess_exec(
        path,
        *QUERY,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        return ()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return parse_gpu_memory(output.decode(errors="replace"))
