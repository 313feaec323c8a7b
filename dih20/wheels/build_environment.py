"""The environment of a build: it starts empty, and everything in it is written here or in the recipe."""

from __future__ import annotations

from dih20.wheels import driver_stub
from dih20.wheels.image_facts import PLAIN_PATH, ImageFacts
from dih20.wheels.jobs import Jobs
from dih20.wheels.plan import Wanted
from dih20.wheels.recipes import fill_in
from dih20.wheels.repack import SOURCE_DATE_EPOCH
from dih20.wheels.toolkit import IN_CONTAINER as CUDA


def environment_of(wanted: Wanted, facts: ImageFacts, jobs: Jobs) -> dict[str, str]:
    """Give every variable that the build sees."""
    recipe = wanted.recipe
    path = f"/build/site/bin:{facts.environment.get('PATH', PLAIN_PATH)}"
    environment = {
        "PATH": path,
        "HOME": "/build/home",
        "TMPDIR": "/build/tmp",
        "LANG": "C.UTF-8",
        "MAX_JOBS": str(jobs.count),
        "SOURCE_DATE_EPOCH": str(SOURCE_DATE_EPOCH),
        "PYTHONPATH": "/build/site",
        "PYTHONHASHSEED": "0",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # Trust this one copied checkout, whoever owns it, and no other folder.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "/build/source",
    }
    if "CPATH" in facts.environment:
        environment["CPATH"] = facts.environment["CPATH"]
    if recipe.build.nvcc:
        environment |= {"CUDA_HOME": CUDA, "PATH": f"{path}:{CUDA}/bin"}
    if recipe.linking.driver_stub:
        environment["LIBRARY_PATH"] = str(driver_stub.FOLDER)
    if recipe.build.version_from_git:
        environment["DI_MARKER"] = wanted.described.marker or "as it was found"
    own = {name: fill_in(value, wanted.places) for name, value in recipe.build.environment.items()}
    return environment | own
