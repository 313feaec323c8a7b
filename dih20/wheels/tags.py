"""Does a wheel's file name tell the truth about its content and its image?"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from dih20.wheels.elf import SharedObject
from dih20.wheels.recipes import Recipe
from dih20.wheels.verdicts import Verdict, fail, ok

CHECK = "tag"


def judge_tags(
    wheel: Path, recipe: Recipe, objects: Sequence[SharedObject], *, python_tag: str
) -> Verdict:
    """Compare the file name, the WHEEL file inside, and whether there is machine code."""
    try:
        _, _, _, tags = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as fault:
        return fail(
            CHECK,
            f"{wheel.name} is not a wheel's file name: {fault}",
            expected="name-version-python-abi-platform.whl",
            remedy="build the wheel again; its version may be blank",
        )
    inside = _tags_inside(wheel)
    outside = {str(tag) for tag in tags}
    if inside != outside:
        return fail(
            CHECK,
            f"the file name says {', '.join(sorted(outside))}, the WHEEL file inside says {', '.join(sorted(inside))}",
            expected="the same tags",
            remedy="do not rename wheels; build it again",
        )
    platforms, interpreters = {tag.platform for tag in tags}, {tag.interpreter for tag in tags}
    if objects and platforms == {"any"}:
        return fail(
            CHECK,
            f"tagged for any platform, but {objects[0].path.name} is machine code",
            expected="a platform tag such as linux_x86_64",
            remedy="tell the build that the distribution has extension modules",
        )
    if not objects and platforms != {"any"}:
        return fail(
            CHECK,
            f"tagged {', '.join(sorted(platforms))}, but there is no machine code inside",
            expected="the tag py3-none-any, or the missing extension",
            remedy="see in the build log why the extension was left out",
        )
    wanted = {"py3"} if recipe.python_tag == "py3" else {python_tag}
    if interpreters - wanted:
        return fail(
            CHECK,
            f"built for {', '.join(sorted(interpreters))}",
            expected=f"{', '.join(sorted(wanted))}, the image's python"
            if "py3" not in wanted
            else "py3",
            remedy="build it again in the image it is meant for",
        )
    return ok(CHECK, ", ".join(sorted(outside)))


def _tags_inside(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = [
            n for n in archive.namelist() if n.endswith(".dist-info/WHEEL") and n.count("/") == 1
        ]
        text = archive.read(names[0]).decode() if names else ""
    written = [
        line.removeprefix("Tag: ").strip() for line in text.splitlines() if line.startswith("Tag: ")
    ]
    return {tag for line in written for tag in _expanded(line)}


def _expanded(compressed: str) -> set[str]:
    from packaging.tags import parse_tag

    return {str(tag) for tag in parse_tag(compressed)}
