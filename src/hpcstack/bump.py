"""Move stacks to a newer base image: the recipes are edited, locked, and compared with before.

What comes of it is told so that it can stand as the text of a merge request.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.errors import InputError
from hpcstack.core.files import write_text, writing_below
from hpcstack.hardware.compatibility import judge_fit
from hpcstack.hardware.facts import read_facts_of
from hpcstack.lock.diff import (
    diff_contents,
    diff_locks,
    find_newer_tags,
    find_tags_of,
    format_changes,
    have_same_shape,
    order_tag,
)
from hpcstack.lock.file import LockFile
from hpcstack.lock.known import read_base_environment
from hpcstack.recipe.adopted import refuse_adopted
from hpcstack.recipe.edit import NewBase, extend_shipped, find_numbers, move_recipe, set_base
from hpcstack.releases.ledger import make_version_key
from hpcstack.resolve.make_lock import make_lock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcstack.build.workbench import Workbench
    from hpcstack.lock.diff import Difference
    from hpcstack.lock.model import Lock
    from hpcstack.oci.client import Registry
    from hpcstack.recipe.catalog import Catalog, Recipe
    from hpcstack.recipe.edit import RecipeEdit
    from hpcstack.recipe.model import Stack
    from hpcstack.site.load import Site


@dataclass(frozen=True)
class Move:
    """One recipe, and how it comes onto a newer base.

    `edit` is None where it is there already.
    """

    recipe: Recipe
    stacks: tuple[str, ...]  # full names of what is on the newer base: the first is RECIPE's own
    edit: RecipeEdit | None
    holds: tuple[Difference, ...] = ()  # what the new base contains, as far as a registry says it

    def format_diff(self) -> str:
        """Return how the recipe's file changes, as a unified diff; empty where it does not."""
        if not self.edit:
            return ""
        before = self.edit.before.splitlines(keepends=True)
        after = self.edit.after.splitlines(keepends=True)
        name = str(self.edit.path)
        return "".join(difflib.unified_diff(before, after, name if before else "/dev/null", name))


@dataclass(frozen=True)
class Moved:
    """What a move has changed for one stack: its lock, and nodes on which it runs no longer.

    BEFORE is the stack that the lock is compared with.
    """

    move: Move
    before: str
    stack: str
    lock: Path
    changes: tuple[Difference, ...]
    misfits: tuple[str, ...]

    def format_markdown(self) -> str:
        """Return the text of a merge request."""
        move = self.move
        lines = [f"## {self.before} -> {self.stack}", ""]
        if move.edit:
            kind = "changed" if move.edit.before else "new"
            lines.append(f"- `{move.edit.path.name}`: {kind}")
            lines += [f"- NOTE: {note}" for note in move.edit.notes]
        lines.append(f"- `{self.lock.name}`: locked")
        if self.misfits:
            lines += ["", "**Nodes on which it does not run any more:**", ""]
            lines += [f"- {misfit}" for misfit in self.misfits]
        lines += ["", format_changes(list(self.changes), self.before, self.stack)]
        return "\n".join(lines) + "\n"


def is_shipped(recipe: Recipe) -> bool:
    """Return whether RECIPE comes with hpcstack, so that its file is not to be edited."""
    return is_shipped_file(recipe.path)


def is_shipped_file(path: Path) -> bool:
    """Return whether the recipe's file PATH comes with hpcstack."""
    return path.resolve().parent == data.find_data_folder("recipes").resolve()


def choose_newest(recipes: Sequence[Recipe]) -> list[Recipe]:
    """Return those of RECIPES that are to be moved: of each stack its newest version.

    Versions of one stack have the same name, variant and repository, and tags of the same shape. Of
    the stacks that one file makes of one version on one base, such as variants, the first stands
    for all.
    """
    newest: dict[tuple[str, ...], Recipe] = {}
    for recipe in recipes:
        stack = recipe.stack
        base = stack.base
        repository = f"{base.registry}/{base.repository}"
        for known, other in newest.items():
            same = known[:3] == (stack.name, stack.variant, repository)
            if same and have_same_shape(known[3], base.tag):
                if _order_stack(stack) > _order_stack(other.stack):
                    newest[known] = recipe
                break
        else:
            newest[stack.name, stack.variant, repository, base.tag] = recipe

    of_files: dict[tuple[Path, str, str], Recipe] = {}
    for recipe in newest.values():
        stack = recipe.stack
        of_files.setdefault((recipe.path, stack.version, stack.base.image), recipe)
    return list(of_files.values())


def _order_stack(stack: Stack) -> tuple[object, ...]:
    """Return the key by which versions of one stack are sorted: their bases', then their own."""
    return order_tag(stack.base.tag), make_version_key(stack.version)


def choose_tag(stack: Stack, tags: Sequence[str], month: str) -> str:
    """Return the tag of the repository that STACK's base is to be moved to; its own if it is there.

    That is the newest of TAGS that is of MONTH; for an empty MONTH the newest at all. Where the
    stack's version is the beginning of the tag's (3.12 on 3.12.13), only such tags count. Raise
    InputError where there is none, or only an older one.
    """
    base = stack.base
    newer = [tag for tag in find_newer_tags(base.tag, list(tags)) if _may_follow(stack, tag)]
    if not month:
        return newer[-1] if newer else base.tag

    found = find_tags_of(base.tag, month, list(tags))
    if base.tag in found:
        return base.tag
    if found and order_tag(found[-1]) < order_tag(base.tag):
        raise InputError(
            f"{stack.full_name} is on {base.tag}, and {found[-1]} is older",
            "to go back, use the stack that is on it; `hpcstack rollback` returns to a release",
            page="new-ngc-month",
        )
    if not found:
        known = f"the newer ones are {', '.join(newer[-6:])}" if newer else "there is no newer one"
        raise InputError(
            f"{base.registry}/{base.repository} has no tag like {base.tag} that begins with {month}",
            known,
            page="new-ngc-month",
        )
    return found[-1]


def _may_follow(stack: Stack, tag: str) -> bool:
    """Return whether TAG, which is newer than that of STACK's base, may take its place unasked.

    No number behind the first may fall: it may be that of the distribution. And a version that
    names the beginning of its base's, such as 3.12, is not put onto another.
    """
    had, has = find_numbers(stack.base.tag), find_numbers(tag)
    if any(order_tag(new) < order_tag(old) for old, new in zip(had[1:], has[1:], strict=False)):
        return False
    is_prefix = had and had[0].startswith(f"{stack.version}.")
    return not is_prefix or has[0].startswith(f"{stack.version}.")


@dataclass
class Planner:
    """Plans how recipes are moved. Nothing is written; a later plan sees the earlier ones.

    OWN_FOLDER takes new files for recipes that come with hpcstack; None where there is no such
    folder. MONTH is what the new tags begin with; empty for the newest of each.
    """

    catalog: Catalog
    site: Site
    registry: Registry
    own_folder: Path | None
    month: str
    tags: dict[str, list[str]] = field(default_factory=dict)  # {repository: its tags}

    def plan(self, recipe: Recipe) -> Move:
        """Return how RECIPE is moved. Raise InputError where it cannot be."""
        refuse_adopted(recipe)
        # What was planned before may have moved it along.
        recipe_now = self.catalog.find(recipe.stack.full_name)
        stack = recipe_now.stack
        base = stack.base
        if not base.tag:
            raise InputError(
                f"{stack.full_name} names its base by digest alone: there is nothing newer",
                "name a tag in the recipe",
                page="new-ngc-month",
            )
        repository = f"{base.registry}/{base.repository}"
        if repository not in self.tags:
            self.tags[repository] = self.registry.tags(base)
        tag = choose_tag(stack, self.tags[repository], self.month)
        if tag == base.tag:
            return Move(recipe, self._list_moved(recipe_now.path, stack.full_name), None)

        new_base = self._look_up(recipe_now, f"{repository}:{tag}")
        there = self._find_there(recipe_now, new_base)
        if there:
            return Move(recipe, self._list_moved(self.catalog.find(there).path, there), None)
        edit = self._make_edit(recipe_now, new_base)
        edit = self._put_on_base(recipe_now, edit, new_base)
        before, self.catalog = self.catalog, self.catalog.plan(edit.path, edit.after)
        edit = self._note_dragged(edit, before)
        holds = diff_contents(new_base.holds, new_base.will_hold)
        return Move(recipe, self._list_moved(edit.path, edit.stack), edit, tuple(holds))

    def _find_there(self, recipe: Recipe, base: NewBase) -> str:
        """Return the stack that RECIPE would become, if there is one already; empty for none.

        InputError where it is on another base.
        """
        stack = recipe.stack
        if stack.version != base.had_month:
            return ""
        name = "-".join(part for part in (stack.name, base.month, stack.variant) if part)
        if not self._has_stack(name):
            return ""
        there = self.catalog.find(name)
        if there.stack.base.tag != base.tag:
            raise InputError(
                f"{name} is there already, in {there.path}, on {there.stack.base.image}",
                f"move that: hpcstack bump {name} --to {base.month}",
                page="new-ngc-month",
            )
        return name

    def _list_moved(self, path: Path, name: str) -> tuple[str, ...]:
        """Return the stacks of the file PATH of the version and base of the stack NAME; it first."""
        own = self.catalog.find(name).stack
        names = [
            one.stack.full_name
            for one in self.catalog.read(path)
            if (one.stack.base, one.stack.version) == (own.base, own.version)
        ]
        return (name, *(other for other in names if other != name))

    def _note_dragged(self, edit: RecipeEdit, before: Catalog) -> RecipeEdit:
        """Return EDIT with a note for each stack of another file that it changes."""
        if not edit.before:
            return edit
        notes = []
        for path in before.files():
            if path == edit.path or is_shipped_file(path):
                continue
            try:
                had = {one.stack.full_name: one.stack for one in before.read(path)}
                has = {one.stack.full_name: one.stack for one in self.catalog.read(path)}
            except InputError:  # it is as wrong as it was
                continue
            notes += [
                f"{name} of {path.name} extends it, and changes with it: hpcstack lock {name}"
                for name in had
                if has.get(name) != had[name]
            ]
        return replace(edit, notes=(*edit.notes, *notes))

    def _look_up(self, recipe: Recipe, image: str) -> NewBase:
        """Return IMAGE as the new base of RECIPE, with what it and the old one contain."""
        base = recipe.stack.base
        lock = LockFile(recipe, self.site).read()
        holds = read_facts_of(read_base_environment(recipe, lock)) or self.registry.facts(base)
        wanted = base.model_copy(update={"image": image, "platforms": base.platforms[:1]})
        will_hold = self.registry.facts(wanted)
        # A recipe that names the digest as well goes on doing so.
        pinned = f"{image}@{self.registry.digest(wanted)}" if base.digest else image
        return NewBase(pinned, wanted.tag, base.tag, holds, will_hold)

    def _make_edit(self, recipe: Recipe, base: NewBase) -> RecipeEdit:
        if is_shipped(recipe):
            if not self.own_folder:
                raise InputError(
                    f"{recipe.stack.full_name} comes with hpcstack, and there is no folder for a "
                    "recipe of yours",
                    "name one: recipe_dirs in site.yaml, or hpcstack --recipes DIR bump ...",
                    page="build-my-own-stack",
                )
            return extend_shipped(recipe, base, self.own_folder)
        text = self.catalog.text(recipe.path)
        return move_recipe(recipe, text, base, self._has_stack)

    def _has_stack(self, name: str) -> bool:
        return name in self.catalog.names()

    def _put_on_base(self, recipe: Recipe, edit: RecipeEdit, base: NewBase) -> RecipeEdit:
        """Return EDIT, so that its stack is on BASE. Raise InputError where it cannot be had.

        Whatever else the file makes must stay what it is.
        """
        if not edit.before and edit.path in self.catalog.files():
            raise InputError(
                f"{edit.path} is there already, and is not on {base.tag}",
                "look at it; move it away, or name its stack",
                page="new-ngc-month",
            )
        planned = self.catalog.plan(edit.path, edit.after)
        if planned.find(edit.stack).stack.base.tag != base.tag:
            edit = set_base(edit, base.image)
            planned = self.catalog.plan(edit.path, edit.after)

        found = planned.find(edit.stack)
        if found.stack.base.tag != base.tag or found.path != edit.path:
            raise InputError(
                f"{edit.stack} would be on {found.stack.base.image}, as {found.path} says",
                f"write it by hand: base: {{image: {base.image}}}",
                page="new-ngc-month",
            )
        if edit.before:
            self._refuse_side_effects(recipe, planned, edit)
        return edit

    def _refuse_side_effects(self, recipe: Recipe, planned: Catalog, edit: RecipeEdit) -> None:
        """Raise InputError where EDIT changes stacks of its file that were not on the old base."""
        had_tag = recipe.stack.base.tag
        before = {one.stack.full_name: one.stack for one in self.catalog.read(recipe.path)}
        after = {one.stack.full_name: one.stack for one in planned.read(recipe.path)}
        moves_in_place = edit.stack == recipe.stack.full_name
        for name, stack in before.items():
            is_moved = moves_in_place and stack.base.tag == had_tag
            if after.get(name) != stack and not is_moved:
                raise InputError(
                    f"{name} of {recipe.path.name} would change, too",
                    "edit the recipe by hand",
                    page="new-ngc-month",
                )


def write_edit(edit: RecipeEdit) -> None:
    """Write the new text of a recipe's file. Raise InputError where the file has changed since.

    So for a link, which git can carry. StoreError where it cannot be written.
    """
    path = edit.path
    if path.is_symlink():
        raise InputError(
            f"{path} is a symbolic link, and no recipe is written through one",
            f"put the file itself there: cp --remove-destination {path.resolve()} {path}",
            page="new-ngc-month",
        )
    there = path.read_bytes().decode() if path.exists() else ""  # with its line ends as they are
    if there != edit.before:
        raise InputError(f"{edit.path} has changed meanwhile", "try again", page="new-ngc-month")
    with writing_below(path.parent, "the recipe was not written"):
        mode = path.stat().st_mode & 0o777 if edit.before else 0o644
        write_text(path, edit.after, mode)


def lock_moved(move: Move, stack: str, catalog: Catalog, bench: Workbench) -> Moved:
    """Lock STACK, which MOVE has put on a newer base, and return what that changes.

    A lock that is current stays. CATALOG has the recipes as they are now.
    """
    site = bench.site
    recipe = catalog.find(stack)
    before = move.recipe
    if recipe.stack.variant != before.stack.variant:
        before = _find_variant(before, recipe.stack.variant, catalog)
    had = LockFile(before, site).read()
    file = LockFile(recipe, site)
    path, lock = file.path, file.read()
    if lock is None or file.state().reasons:
        lock = make_lock(recipe, bench)
        path = file.write(lock)

    changes = diff_locks(had, lock) if had else list(move.holds)
    misfits = tuple(find_misfits(before, had, recipe, lock, site))
    return Moved(move, before.stack.full_name, stack, path, tuple(changes), misfits)


def _find_variant(recipe: Recipe, variant: str, catalog: Catalog) -> Recipe:
    """Return the VARIANT of the stack of RECIPE and its version; RECIPE itself if there is none."""
    stack = recipe.stack
    name = "-".join(part for part in (stack.name, stack.version, variant) if part)
    try:
        return catalog.find(name)
    except InputError:
        return recipe


def find_misfits(
    before: Recipe, had: Lock | None, after: Recipe, lock: Lock, site: Site
) -> list[str]:
    """Return the node types of SITE that ran BEFORE and do not run AFTER, each with the reason."""
    out = []
    for name, node in site.node_types.items():
        platform = node.platform
        if not node.real_gpus or platform not in after.stack.base.platforms:
            continue

        model = node.gpus.model if node.gpus else ""
        was = judge_fit(node.driver, model, read_base_environment(before, had, platform))
        now = judge_fit(node.driver, model, read_base_environment(after, lock, platform))
        if was.runs and not now.runs:
            out.append(f"{name}: {now.rule} [{now.source}]")
    return out
