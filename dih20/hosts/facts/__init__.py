"""Facts about a host: `gather(runner, config)` asks for all a deploy wants to know."""

from dih20.hosts.facts.engine import Container, Engine, Image, made_by_us
from dih20.hosts.facts.gathering import HostFacts, container_names, gather
from dih20.hosts.facts.gpu import FabricManager, Gpu, GpuProcess, Gpus, RowRemap
from dih20.hosts.facts.system import System

__all__ = [
    "Container",
    "Engine",
    "FabricManager",
    "Gpu",
    "GpuProcess",
    "Gpus",
    "HostFacts",
    "Image",
    "RowRemap",
    "System",
    "container_names",
    "gather",
    "made_by_us",
]
