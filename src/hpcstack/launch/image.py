"""Which image a name means."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, ProblemsError
from hpcstack.releases.lookup import ChosenImage, find_released
from hpcstack.releases.named import Named, resolve_name
from hpcstack.releases.seal import check_seal
from hpcstack.releases.tree import Tree
from hpcstack.store.find import newest_image
from hpcstack.store.store import open_store

MOST_NAMED = 5  # stacks, in a refusal
RELEASED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}/[A-Za-z0-9][A-Za-z0-9._+-]{0,139}")

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcstack.recipe.catalog import Catalog
    from hpcstack.site.load import Site
    from hpcstack.store.store import Store


def image_to_launch(
    name: str,
    site: Site,
    store: Store,
    environ: Mapping[str, str],
    release: str = "",
    platform: str = "",
) -> ChosenImage:
    """The image that users mean by NAME, and why: the loaded module's, else the published one, else
    the last built; RELEASE is one that they have named. PLATFORM is that of the nodes, where it is
    known: SITE is seen from them.
    """
    other = ""
    if environ.get("HPCSTACK_STACK") == name and release in ("", environ.get("HPCSTACK_RELEASE")):
        loaded = store.artifact(Path(environ.get("HPCSTACK_IMAGE", "")).parent.name)
        meant = environ.get("HPCSTACK_RELEASE", "")
        if loaded and str(loaded.image) == environ["HPCSTACK_IMAGE"]:
            if site.tree_platform in ("", loaded.platform):
                changed = (
                    check_seal(meant, loaded, site, store) if RELEASED.fullmatch(meant) else ""
                )
                return ChosenImage(
                    loaded, f"module {meant}", f"the image of {meant} {changed}" if changed else ""
                )
            other = (
                f"the loaded {meant} is for {loaded.platform}, and these nodes take "
                f"{site.tree_platform}"
            )
            release = ""
    if found := find_released(name, site, store, release):
        return replace(found, doubt="; ".join(filter(None, (other, found.doubt))))
    return ChosenImage(
        newest_image(name, store, platform), "not published: the image built last", other
    )


def _check_known(recipe: str, recipes: Catalog, store: Store) -> None:
    """InputError for a RECIPE that is in none of RECIPES; where others of its kind are built here,
    with those: a recipe of which there is no image is no help to who wants to run one.
    """
    try:
        recipes.find(recipe)
    except ProblemsError:
        raise
    except InputError as unknown:
        family = re.split(r"[-/][0-9]", recipe, maxsplit=1)[0]
        of_its_kind = [
            name for name in store.stacks() if re.match(rf"{re.escape(family)}-[0-9]", name)
        ]
        if not of_its_kind:
            raise
        nearest = difflib.get_close_matches(recipe, of_its_kind, n=MOST_NAMED, cutoff=0)
        tip = f"hpcstack launch {nearest[0]}; hpcstack images shows all that can be launched here"
        raise InputError(
            f"there is no stack {recipe!r}; there are {', '.join(sorted(nearest))}", tip
        ) from unknown


def choose_image(
    name: str,
    catalog: Callable[[], Catalog],
    site: Site,
    environ: Mapping[str, str],
    platform: str = "",
) -> tuple[ChosenImage, tuple[str, ...]]:
    """The image that NAME means, and what is added to it. Its recipe is not needed: who loads a
    module need not have it; the CATALOG is asked by a refusal, and for a recipe that only adds
    pip's packages to an image.

    PLATFORM is that of the nodes that it is for, empty where nobody knows; SITE is seen from them.
    """
    store = open_store(site)
    if name.endswith(".yaml"):
        meant, recipe = Named(catalog().find(name).stack.full_name), name
    else:
        meant = resolve_name(name, Tree(site.module_tree), environ)
        recipe = meant.stack
    try:
        return image_to_launch(meant.stack, site, store, environ, meant.release, platform), ()
    except InputError as refused:
        recipes = catalog()
        if (on := recipes.layer(recipe)) is None:
            _check_known(recipe, recipes, store)
            raise
        below, packages = on
        try:
            found = image_to_launch(below, site, store, environ, platform=platform)
        except InputError:
            raise refused from None
        why = f"{below}, {found.why}, and a layer of {', '.join(packages)}"
        return replace(found, why=why), packages
