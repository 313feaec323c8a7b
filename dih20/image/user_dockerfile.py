"""Build a user's own Dockerfile through the SDK, that is with the engine's classic builder.

What only BuildKit understands is refused, naming line and feature: an old engine would ignore a
mount and build something else. The context goes as a stream whose bytes depend on names, modes and
contents alone, so that a touched file does not rebuild anything.
"""

from __future__ import annotations

import re
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dih20.console import Console
from dih20.errors import ImageError, UsageError
from dih20.image.dockerfile_features import buildkit_features, instructions
from dih20.image.ignore_file import context_files, parse
from dih20.image.jsonfeed import objects
from dih20.image.output_lines import advice, error_lines
from dih20.paths import build_dir, shown
from dih20.plan import Action, Plan

if TYPE_CHECKING:
    import docker

_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")


def make_plan(path: Path, tag: str) -> Plan:
    """Give the instructions as a plan; raise ImageError for a Dockerfile that needs BuildKit."""
    text = _read(path)
    if found := buildkit_features(text):
        lines = "\n".join(f"  {shown(path)}:{f.line}: {f.name}: {f.text}" for f in found)
        raise ImageError(
            found=f"this Dockerfile needs BuildKit:\n{lines}",
            expected="instructions that the engine's classic builder runs; it is what the SDK talks to",
            remedy=f"take them out, or build it yourself: docker buildx build --file {path} --tag {tag} {path.parent}",
        )
    actions = [
        Action(verb="run", target=instruction, why=f"line {number}", needed=None)
        for number, instruction in instructions(text.splitlines())
    ]
    return Plan(title=f"build {tag} from {shown(path)}", actions=tuple(actions))


def build(ui: Console, client: docker.DockerClient, path: Path, *, tag: str) -> dict[str, Any]:
    """Build and tag; a line per instruction says hit or miss, a failure carries the step's own errors."""
    make_plan(path, tag)
    log = build_dir() / "logs" / f"dockerfile-{re.sub(r'[^A-Za-z0-9._-]', '-', tag)}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as context:
        with ui.step("pack", f"context {shown(path.parent)}") as line:
            count = write_context(path, context)
            line.note = f"{count} entries, {context.tell() / 1e6:.1f} MB"
        context.seek(0)
        with ui.step("build", tag) as line:
            progress = _Progress(ui=ui, log=log)
            for entry in _posted(client, context, tag, path.name):
                progress.take(entry)
            progress.check(path)
            progress.show()
            image = client.images.get(tag)
            line.note = f"{progress.hits} hits, {progress.misses} misses, {str(image.id)[7:19]}"
    return {"id": image.id, "tag": tag, "steps": progress.steps}


def write_context(path: Path, target: BinaryIO) -> int:
    """Write the context of a Dockerfile as a tar without times and owners; give the number of entries."""
    root = path.parent
    ignore = root / f"{path.name}.dockerignore"
    ignore = ignore if ignore.is_file() else root / ".dockerignore"
    patterns = parse(ignore.read_text(), shown(ignore)) if ignore.is_file() else []
    count = 0
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20) as out:
        names = set()
        for name, entry in context_files(root, patterns):
            _add(out, name, Path(entry.path))
            names.add(name)
            count += 1
        if path.name not in names:  # an ignore file may name it; the builder needs it all the same
            _add(out, path.name, path)
            count += 1
    return count


def _add(out: tarfile.TarFile, name: str, path: Path) -> None:
    facts = path.lstat()
    entry = tarfile.TarInfo(name)  # no owner, no time: they would change the layer, not its content
    entry.mode = stat.S_IMODE(facts.st_mode)
    if stat.S_ISLNK(facts.st_mode):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        out.addfile(entry)
    elif stat.S_ISDIR(facts.st_mode):
        entry.type = tarfile.DIRTYPE
        out.addfile(entry)
    elif stat.S_ISREG(facts.st_mode):
        entry.size = facts.st_size
        with path.open("rb") as content:
            out.addfile(entry, content)


@dataclass(kw_only=True)
class _Progress:
    """Follow the builder's answer: print it, log it, and count which instructions were cached."""

    ui: Console
    log: Path
    lines: list[str] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    _rest: str = ""

    def __post_init__(self) -> None:
        self.log.write_text("")

    def take(self, entry: dict[str, Any]) -> None:
        if problem := entry.get("error"):
            self.error = str(problem)
        *whole, self._rest = (self._rest + str(entry.get("stream") or "")).split("\n")
        with self.log.open("a", encoding="utf-8") as out:
            for line in whole:
                out.write(line + "\n")
                self._line(line)

    def _line(self, line: str) -> None:
        self.lines.append(line)
        if match := _STEP.match(line):
            self.steps.append({"step": int(match[1]), "instruction": match[3], "hit": False})
        elif "Using cache" in line and self.steps:
            self.steps[-1]["hit"] = True
        if line.strip():
            self.ui.line(f"    {line}", style="dim")

    def show(self) -> None:
        """Print which instructions were taken from the cache."""
        for step in self.steps:
            self.ui.line(f"  {'=' if step['hit'] else '+'} {step['step']}. {step['instruction']}")

    @property
    def hits(self) -> int:
        return sum(step["hit"] for step in self.steps)

    @property
    def misses(self) -> int:
        return len(self.steps) - self.hits

    def check(self, path: Path) -> None:
        if not self.error:
            return
        last = (
            self.steps[-1]
            if self.steps
            else {"step": 0, "instruction": "(before the first instruction)"}
        )
        own = "\n".join(f"  {line}" for line in error_lines([*self.lines, self._rest]))
        raise ImageError(
            found=f"{shown(path)}, step {last['step']}, `{last['instruction']}`: {self.error}\n{own}",
            expected="exit code 0 of every instruction",
            remedy=f"{advice(self.lines) or 'mend what these lines name'}; full log: {shown(self.log)}",
        )


def _posted(
    client: docker.DockerClient, context: BinaryIO, tag: str, dockerfile: str
) -> Iterator[dict[str, Any]]:
    """Send the context ourselves: the SDK's own reader stops at a chunk that is not one whole object."""
    from docker.errors import APIError

    api: Any = client.api
    parameters = {"t": tag, "rm": True, "forcerm": True, "dockerfile": dockerfile}
    try:
        headers = {"Content-Type": "application/x-tar"}
        response = api._post(
            api._url("/build"), data=context, params=parameters, headers=headers, stream=True
        )
        api._raise_for_status(response)
        with response:
            yield from objects(response.iter_content(8192))
    except APIError as refused:
        yield {"error": str(refused.explanation or refused)}


def _read(path: Path) -> str:
    if not path.is_file():
        raise UsageError(
            found=f"no file {shown(path)}", expected="a Dockerfile", remedy="correct --dockerfile"
        )
    return path.read_text(errors="replace")
