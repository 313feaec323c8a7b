"""The environment of a build: it starts empty, and everything in it is written here, in the procedure or in the recipe."""

from __future__ import annotations

from dih20.wheels import driver_stub
from dih20.wheels.image_facts import PLAIN_PATH, ImageFacts
from dih20.wheels.jobs import Jobs
from dih20.wheels.plan import Wanted
from dih20.wheels.procedure import fixed_environment
from dih20.wheels.recipes import fill_in
from dih20.wheels.toolkit import IN_CONTAINER as CUDA


def environment_of(wanted: Wanted, facts: ImageFacts, jobs: Jobs) -> dict[str, str]:
    """Give every variable that the build sees."""
    recipe = wanted.recipe
    path = f"/build/site/bin:{facts.environment.get('PATH', PLAIN_PATH)}"
    environment = {"PATH": path, "MAX_JOBS": str(jobs.count)}
    if "CPATH" in facts.environment:
        environment["CPATH"] = facts.environment["CPATH"]
    if recipe.build.nvcc:
        environment |= {"CUDA_HOME": CUDA, "PATH": f"{path}:{CUDA}/bin"}
    if recipe.linking.driver_stub:
        environment["LIBRARY_PATH"] = str(driver_stub.FOLDER)
    if recipe.build.version_from_git:
        environment["DI_MARKER"] = wanted.described.marker or "as it was found"
    own = {name: fill_in(value, wanted.places) for name, value in recipe.build.environment.items()}
    # The fixed variables come last: they hold the recipe's own flags where both have some.
    return environment | own | fixed_environment(recipe)
