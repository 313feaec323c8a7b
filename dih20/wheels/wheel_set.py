"""All wheels of an image: plan, build what is missing, one provider a name, a table at the end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dih20.console import Console
from dih20.errors import NotForSm90, ToolError, WheelError
from dih20.lock import Lock
from dih20.wheels.build import Builder, Limits
from dih20.wheels.image_facts import ImageFacts, facts_of
from dih20.wheels.plan import Skipped, Wanted, as_plan, consider
from dih20.wheels.provider import choose, refuse_two_providers, settle_providers
from dih20.wheels.recipes import Recipe, load_all, select
from dih20.wheels.rows import Row, Status, show_table
from dih20.wheels.store import Store, StoredWheel

if TYPE_CHECKING:
    import docker


def build_wheels(
    ui: Console,
    client: docker.DockerClient,
    image: str,
    lock: Lock,
    *,
    only: str | None = None,
    limits: Limits | None = None,
    recipes: Sequence[Recipe] | None = None,
    store: Store | None = None,
) -> list[Row]:
    """Build what is not in the store; give a row per recipe, then raise for what is not optional.

    Args:
        image: a tag or id in the client's engine.
        only: recipe names, comma-separated.
    """
    store = store or Store()
    facts, considered = look_at(client, image, lock, only=only, recipes=recipes, store=store)
    ui.plan(as_plan(image, considered))
    builder = Builder(
        ui=ui, client=client, facts=facts, lock=lock, store=store, limits=limits or Limits()
    )
    rows = settle_providers([_carry_out(ui, builder, item) for item in considered], store)
    show_table(ui, rows)
    refuse_two_providers([row.wheel for row in rows if row.wheel])
    _raise_for_missing(rows)
    return rows


def look_at(
    client: docker.DockerClient,
    image: str,
    lock: Lock,
    *,
    only: str | None = None,
    recipes: Sequence[Recipe] | None = None,
    store: Store | None = None,
) -> tuple[ImageFacts, list[Wanted | Skipped]]:
    """Give the image's facts, and per recipe a hit, a build with its reason, or why it is left out."""
    facts = facts_of(client, image)
    chosen = select(list(recipes) if recipes is not None else load_all(), only)
    store = store or Store()
    return facts, [item for recipe in chosen for item in consider(lock, facts, recipe, store)]


def _carry_out(ui: Console, builder: Builder, item: Wanted | Skipped) -> Row:
    recipe = item.recipe
    if isinstance(item, Skipped):
        return Row(recipe=recipe, status="skipped", note=item.note)
    started = time.monotonic()
    if item.hit:
        with ui.step("wheel", recipe.name) as step:
            step.status, step.note = "hit", f"{item.why} (looked up in {item.seconds:.2f} s)"
        return Row(recipe=recipe, status="hit", note=item.why, wheel=item.hit, seconds=item.seconds)
    try:
        with ui.step("wheel", recipe.name) as step:
            step.note = item.why
            wheel = builder.build(item)
    except ToolError as error:
        ui.warn(error.found)
        status: Status = "unusable" if isinstance(error, NotForSm90) else "failed"
        first = error.found.splitlines()[0].split(": ", 1)[-1]
        return Row(
            recipe=recipe,
            status=status,
            note=first,
            error=error,
            seconds=time.monotonic() - started,
        )
    return Row(
        recipe=recipe,
        status="built",
        note=item.why,
        wheel=wheel,
        seconds=time.monotonic() - started,
    )


def _raise_for_missing(rows: Iterable[Row]) -> None:
    """Raise the first error of a recipe that is not optional; a skipped one counts when nothing stands in."""
    rows = list(rows)
    provided = {row.recipe.name for row in rows if row.wheel}
    for row in rows:
        if row.recipe.optional or row.recipe.name in provided:
            continue
        if row.error:
            raise row.error
        needs_torch = row.recipe.build.torch and row.recipe.policy == "build"
        raise (WheelError if needs_torch else NotForSm90)(
            found=f"{row.recipe.name}: {row.note}",
            expected=f"a wheel: recipes/{row.recipe.name}.yaml does not call it optional",
            remedy="build in an image with torch (--torch puts the lock's on the stand-in), or leave it out with --only"
            if needs_torch
            else "bring its drop-in into the tree, or declare the recipe optional",
        )


def wheels_for(
    client: docker.DockerClient,
    image: str,
    lock: Lock,
    *,
    only: str | None = None,
    store: Store | None = None,
) -> list[StoredWheel]:
    """Give the stored wheels that belong to exactly this image, lock and set of recipes.

    A recipe that cannot be built for this image is left out when it is optional or when the image has
    no torch to build against; anything else that is missing is an error that names what changed.
    """
    store = store or Store()
    facts = facts_of(client, image)
    found: list[StoredWheel] = []
    missing: list[str] = []
    for recipe in select(load_all(), only):
        wanted = [i for i in consider(lock, facts, recipe, store) if isinstance(i, Wanted)]
        if recipe.policy == "real-or-drop-in" and len(wanted) > 1:
            provider, why = choose(store, wanted[0].hit, wanted[1].hit)
            wanted = [replace(wanted[1], hit=provider, why=why)]
        for item in wanted:
            if item.hit is not None:
                refuse_mismatch(item.hit, facts)
                found.append(item.hit)
            elif not recipe.optional:
                missing.append(f"{recipe.name} ({item.why})")
    if missing:
        raise WheelError(
            found=f"not in the wheel store: {', '.join(missing)}",
            expected=f"a wheel for each recipe, built for image {image}",
            remedy="run ./inv build-vendor, then repeat",
        )
    refuse_two_providers(found)
    return found


def refuse_mismatch(wheel: StoredWheel, facts: ImageFacts) -> None:
    """Raise for a wheel of another python or torch build than the image's."""
    tag, torch = wheel.parts["python_tag"], wheel.parts["torch"]
    if tag not in ("any", facts.python_tag):
        raise WheelError(
            found=f"{wheel.path.name} is built for {tag}",
            expected=f"{facts.python_tag}, the python of image {facts.image_id[:19]}",
            remedy="build it in that image: ./inv build-vendor --image ...",
        )
    if torch not in ("none", facts.torch):
        raise WheelError(
            found=f"{wheel.path.name}: built with torch {torch}",
            expected=f"torch {facts.torch}, which image {facts.image_id[:19]} has",
            remedy="build it in that image: ./inv build-vendor --image ...; wheels do not move between torch builds",
        )
