"""A host whose containers hold the fake server: deployed as any other wheel, under the server's name."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import yaml

from dih20.config import HostConfig
from dih20.deploy.wanted import WantedWheel
from tests.deploy.stand import wheel_of

FAKE = Path(__file__).with_name("fake_server.py")


def fake_wheel(folder: Path, act: str) -> WantedWheel:
    """Give a wheel with a package dih20.serve that acts in one way; each act is another version."""
    path = folder / f"fake_serve_{act}-1.0-py3-none-any.whl"
    info = path.name.removesuffix("-py3-none-any.whl") + ".dist-info"
    body = FAKE.read_text().replace('os.environ.get("FAKE_ACT", "well")', repr(act))
    files = {
        "dih20/__init__.py": "",
        "dih20/serve/__init__.py": "",
        "dih20/serve/__main__.py": body,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: fake_serve_{act}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return wheel_of(path, imports=("dih20.serve",))


def write_configs(folder: Path, host: HostConfig, **serving: Any) -> None:
    """Write the configuration of a host that serves the canary."""
    (folder / "hosts").mkdir(parents=True, exist_ok=True)
    plain = host.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    (folder / "hosts" / f"{host.name}.yaml").write_text(yaml.safe_dump(plain))
    deadlines = {"drain_timeout_s": 1, "close_timeout_s": 1, "no_progress_timeout_s": 60}
    values = {"engine": "reference", "deadlines": deadlines, **serving}
    (folder / "serve.yaml").write_text(yaml.safe_dump(values))
    (folder / "engine.yaml").write_text("{}\n")
