"""Find the image that a name means."""

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
from hpcstack.releases.tree import open_tree
from hpcstack.store.find import find_newest_image
from hpcstack.store.store import open_store

MOST_NAMED = 5  # stacks that a refusal names
# A release as its module is called: NAME/VERSION
RELEASED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}/[A-Za-z0-9][A-Za-z0-9._+-]{0,139}")

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcstack.recipe.catalog import Catalog
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store


def find_image_to_launch(
    name: str,
    site: Site,
    store: Store,
    environ: Mapping[str, str],
    release: str = "",
    platform: str = "",
) -> ChosenImage:
    """Return the image that users mean by NAME, and why.

    It is that of the loaded module, else the published one, else the one built last. RELEASE is a
    release that they have named. SITE is as the nodes see it, whose PLATFORM is empty where it is
    not known. Raise InputError where there is no image.
    """
    doubt = ""
    is_loaded = environ.get("HPCSTACK_STACK") == name
    loaded_release = environ.get("HPCSTACK_RELEASE", "")
    if is_loaded and release in ("", environ.get("HPCSTACK_RELEASE")):
        loaded = store.artifact(Path(environ.get("HPCSTACK_IMAGE", "")).parent.name)
        if loaded and str(loaded.image) == environ["HPCSTACK_IMAGE"]:
            if site.tree_platform in ("", loaded.platform):
                return _image_of_module(loaded, loaded_release, site, store)
            # The module was loaded on another kind of machine than the nodes are: take the same
            # stack for theirs, and say so.
            doubt = (
                f"the loaded {loaded_release} is for {loaded.platform}, and these nodes take "
                f"{site.tree_platform}"
            )
            release = ""

    found = find_released(name, site, store, release)
    if found:
        return replace(found, doubt="; ".join(filter(None, (doubt, found.doubt))))
    newest = find_newest_image(name, store, platform)
    return ChosenImage(newest, "not published: the image built last", doubt)


def _image_of_module(loaded: Artifact, release: str, site: Site, store: Store) -> ChosenImage:
    """Return the LOADED module's image, with a doubt where it has changed since its RELEASE.

    A RELEASE that is none, in a variable, is no release of the image.
    """
    if not RELEASED.fullmatch(release):
        return ChosenImage(loaded, "the loaded module")
    changed = check_seal(release, loaded, site, store)
    doubt = f"the image of {release} {changed}" if changed else ""
    return ChosenImage(loaded, f"module {release}", doubt, release)


def _check_known(recipe: str, recipes: Catalog, store: Store) -> None:
    """Raise InputError where none of RECIPES is called RECIPE.

    Where images of the same family are in STORE, the refusal names those: a recipe without an image
    is no help to a user who wants to run one.
    """
    try:
        recipes.find(recipe)
    except ProblemsError:
        raise
    except InputError as unknown:
        family = re.split(r"[-/][0-9]", recipe, maxsplit=1)[0]  # pytorch, of pytorch-24.11
        of_its_kind = [
            name for name in store.stacks() if re.match(rf"{re.escape(family)}-[0-9]", name)
        ]
        if not of_its_kind:
            raise
        nearest = difflib.get_close_matches(recipe, of_its_kind, n=MOST_NAMED, cutoff=0)
        tip = f"hpcstack launch {nearest[0]}; hpcstack images shows all that can be launched here"
        raise InputError(
            f"there is no stack {recipe!r}; there are {', '.join(sorted(nearest))}",
            tip,
            page="see-what-a-launch-did",
        ) from unknown


def choose_image(
    name: str,
    catalog: Callable[[], Catalog],
    site: Site,
    environ: Mapping[str, str],
    platform: str = "",
) -> tuple[ChosenImage, tuple[str, ...]]:
    """Return (the image that NAME means, packages of pip's to add to it).

    The packages are those of a recipe that only adds some to another stack and has no image of its
    own. CATALOG is called for such a recipe, for a NAME that is a recipe's file, and for a refusal:
    who loads a module need not have its recipe. PLATFORM is that of the nodes, empty where it is
    not known; SITE is as they see it. Raise InputError where NAME means no image.
    """
    store = open_store(site)
    if name.endswith(".yaml"):
        meant, recipe = Named(catalog().find(name).stack.full_name), name
    else:
        meant = resolve_name(name, open_tree(site), environ)
        recipe = meant.stack

    try:
        return find_image_to_launch(meant.stack, site, store, environ, meant.release, platform), ()
    except InputError as refused:
        recipes = catalog()
        layer = recipes.layer(recipe)
        if layer is None:
            _check_known(recipe, recipes, store)
            raise
        below, packages = layer
        try:
            found = find_image_to_launch(below, site, store, environ, platform=platform)
        except InputError:
            raise refused from None
        why = f"{below}, {found.why}, and a layer of {', '.join(packages)}"
        return replace(found, why=why), packages
