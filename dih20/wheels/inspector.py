"""Read a built wheel and judge it against its recipe; logs and file names are not believed."""

from __future__ import annotations

import fnmatch
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dih20.errors import InspectionFailed, NotForSm90
from dih20.wheels import elf
from dih20.wheels.device_code import DeviceCode, device_code_of
from dih20.wheels.elf import SharedObject
from dih20.wheels.recipes import Recipe, fill_in
from dih20.wheels.tags import judge_tags
from dih20.wheels.verdicts import Verdict, fail, not_applicable, ok


def inspect_wheel(
    wheel: Path,
    recipe: Recipe,
    *,
    python_tag: str,
    cuobjdump: Path | None = None,
    nccl_library: Path | None = None,
    places: Mapping[str, str] | None = None,
) -> list[Verdict]:
    """Give every verdict on a wheel file, but for the import test, which needs the image.

    Args:
        python_tag: the image's, as cp312.
        cuobjdump: the lock's inspector; without it the fatbin reader stands alone.
        nccl_library: the locked libnccl.so.2, whose exports undefined nccl* symbols must be in.
        places: what {site_packages} and {nccl} in a recipe mean in the image.
    """
    with tempfile.TemporaryDirectory(prefix="di-inspect-") as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        objects = [elf.read(path) for path in elf.elf_files(Path(folder))]
        verdicts = [
            judge_tags(wheel, recipe, objects, python_tag=python_tag),
            _device_code(recipe, objects, cuobjdump),
            _libraries(recipe, objects),
            _search_paths(recipe, objects, places or {}),
            _nccl_symbols(objects, nccl_library),
        ]
        if recipe.linking.glibc_at_most:
            verdicts.append(_glibc(recipe.linking.glibc_at_most, objects))
    return verdicts


def raise_for(recipe: Recipe, wheel: Path, verdicts: Iterable[Verdict]) -> None:
    """Raise for the first kind of failed verdict, naming all of them."""
    failed = [verdict for verdict in verdicts if verdict.status == "fail"]
    if not failed:
        return
    kind = NotForSm90 if all(v.check == "device code" for v in failed) else InspectionFailed
    raise kind(
        found=f"{wheel.name}: " + "; ".join(f"{v.check}: {v.found}" for v in failed),
        expected="; ".join(dict.fromkeys(v.expected for v in failed)),
        remedy="; ".join(dict.fromkeys(v.remedy for v in failed)),
    )


def _device_code(
    recipe: Recipe, objects: Sequence[SharedObject], cuobjdump: Path | None
) -> Verdict:
    check, promise = "device code", recipe.device_code
    codes = {o.path.name: device_code_of(o.path, cuobjdump) for o in objects if o.has_device_code}
    held = frozenset[str]().union(*(code.machine_code for code in codes.values()))
    if promise.kind == "aot":
        return _ahead_of_time(recipe, codes, held)
    if not codes:
        return ok(check, f"none in the files, as kind {promise.kind} promises")
    return fail(
        check,
        "; ".join(f"{name} holds {code.text}" for name, code in codes.items()),
        expected=f"no machine code for a GPU (recipes/{recipe.name}.yaml: device_code.kind {promise.kind})",
        remedy="correct the recipe if the vendor now compiles kernels ahead of time: kind aot, with sm_90a",
    )


def _ahead_of_time(recipe: Recipe, codes: dict[str, DeviceCode], held: frozenset[str]) -> Verdict:
    missing = [a for a in recipe.device_code.architectures if a not in held]
    if not missing:
        return ok("device code", "; ".join(f"{name}: {code.text}" for name, code in codes.items()))
    what = ", ".join(sorted(held)) or "no machine code"
    return fail(
        "device code",
        f"built, contains no {', '.join(missing)} (it holds {what}), marked unusable on SM90, fallback {recipe.replacement}",
        expected=f"machine code for {', '.join(missing)} (recipes/{recipe.name}.yaml)",
        remedy="give the vendor's build the Hopper architecture, or use the drop-in in its place",
    )


def _libraries(recipe: Recipe, objects: Sequence[SharedObject]) -> Verdict:
    check = "needed libraries"
    if not objects:
        return not_applicable(check, "no ELF file inside")
    own = {o.soname or o.path.name for o in objects}
    allowed = recipe.linking.allowed_libraries | own
    strange = [
        f"{o.path.name} needs {name}" for o in objects for name in o.needed if name not in allowed
    ]
    if recipe.linking.driver_stub and not any("libcuda.so.1" in o.needed for o in objects):
        return fail(
            check,
            "no file needs libcuda.so.1 although the build linked with -lcuda",
            expected="DT_NEEDED libcuda.so.1, the driver's own name, from the link-time stub",
            remedy="see in the build log which libcuda the linker took",
        )
    if not strange:
        return ok(check, ", ".join(sorted({name for o in objects for name in o.needed})))
    return fail(
        check,
        "; ".join(strange),
        expected=f"only what recipes/{recipe.name}.yaml lists under linking.libraries",
        remedy="find what brought it in; list it in the recipe only if the image really has it",
    )


def _search_paths(
    recipe: Recipe, objects: Sequence[SharedObject], places: Mapping[str, str]
) -> Verdict:
    check = "search paths"
    if not objects:
        return not_applicable(check, "no ELF file inside")
    allowed = [fill_in(pattern, places) for pattern in recipe.linking.rpaths]
    bad = list(_bad_paths(objects, allowed))
    if not bad:
        seen = sorted({path for o in objects for path in o.search_paths})
        return ok(check, ", ".join(seen) or "none")
    return fail(
        check,
        "; ".join(bad),
        expected="no RPATH or RUNPATH but " + (", ".join(allowed) or "none at all"),
        remedy="remove the -rpath flag from the vendor's build, or list the folder in the recipe",
    )


def _bad_paths(objects: Sequence[SharedObject], allowed: Sequence[str]) -> Iterator[str]:
    for o in objects:
        for path in o.search_paths:
            if "stubs" in Path(path).parts:
                yield f"{o.path.name} looks for libraries in the stubs folder {path}"
            elif not any(fnmatch.fnmatch(path, pattern) for pattern in allowed):
                yield f"{o.path.name} looks for libraries in {path}"


def _nccl_symbols(objects: Sequence[SharedObject], library: Path | None) -> Verdict:
    check = "nccl symbols"
    wanted = {name for o in objects for name in o.undefined if name.startswith("nccl")}
    if not wanted:
        return not_applicable(check, "no undefined nccl* symbol")
    if library is None:
        return fail(
            check,
            f"{len(wanted)} undefined nccl* symbols and no locked libnccl to compare with",
            expected="the NCCL wheel of the lock in the cache",
            remedy="run ./inv fetch, then build again",
        )
    missing = sorted(wanted - elf.read(library).defined)
    if not missing:
        return ok(check, f"all {len(wanted)} are exported by {library.name}")
    return fail(
        check,
        f"{library.name} does not export {', '.join(missing)}",
        expected="every undefined nccl* symbol in the locked libnccl",
        remedy="lock an NCCL that has them (./inv lock), or build with the headers of the locked one",
    )


def _glibc(at_most: str, objects: Sequence[SharedObject]) -> Verdict:
    check = "C library"
    newest = max(
        (v for o in objects if (v := o.newest_version("GLIBC"))), key=elf.numbered, default="0"
    )
    if elf.numbered(newest) <= elf.numbered(at_most):
        return ok(check, f"needs GLIBC {newest}, at most {at_most} is promised")
    return fail(
        check,
        f"needs GLIBC {newest}",
        expected=f"at most {at_most}, so that it loads on every base",
        remedy="find the newer symbol with `readelf --dyn-syms`, and do without it",
    )
