"""Recipes on disk: find one by its full name, read it with all that it extends, list all.

A file is named after what its stacks' full names begin with: pytorch.yaml may hold pytorch-24.11
and pytorch-24.11-vision. So finding one stack opens few files. A file whose name begins with `_` is
a template: it holds no stack, and is only extended.

Tested in tests/unit/recipe/test_model.py and tests/unit/recipe/test_merge.py.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from hpcstack.core.carried import read_carried_text
from hpcstack.core.errors import InputError, Problem, ProblemsError, did_you_mean
from hpcstack.core.yaml import MAX_BYTES, Document, format_path, list_problems, parse_yaml
from hpcstack.recipe.fields import MAX_SCRIPT
from hpcstack.recipe.merge import (
    Policy,
    expand_matrix,
    fill_tokens,
    merge_documents,
    resolve_replacements,
    strip_own_keys,
)
from hpcstack.recipe.model import Stack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hpcstack.requirements.for_recipe import ProjectRequirements

SUFFIX = ".yaml"
FORMAT = "hpcstack/v1"
# Keys in which a recipe may differ from the stack below it and still need no image of its own.
MAY_DIFFER = ("name", "version", "variant", "summary", "lifecycle", "tests")
MAX_LOOKED = 100  # files that are opened for what one recipe extends
EXTENDED = re.compile(r"_?[A-Za-z0-9][A-Za-z0-9._+-]{0,160}")


@dataclass(frozen=True)
class Recipe:
    """A stack, the file that states it, and the effective spec with the place of each value.

    `project` is what the project of `packages.project` asks for; it is among `pip` and
    `constraints` of the stack already.
    """

    stack: Stack
    path: Path
    document: Document
    project: ProjectRequirements | None = None

    def origins(self) -> dict[str, str]:
        """Return {dotted path: file:line} of each value that was written somewhere."""
        return {
            format_path(path): str(self.document.mark(path))
            for path in _leaf_paths(self.document.value, ())
        }


@dataclass
class Catalog:
    """The recipes of some folders.

    A stack in an earlier folder hides one of the same name in a later folder.
    """

    folders: Sequence[Path]
    policy: Policy = field(default_factory=Policy)
    raw: dict[Path, Document] = field(default_factory=dict)  # files that were read, as written
    looked: int = 0  # how many files were opened for what one recipe extends
    # Files that are not written yet, or not yet as they will be: {path: text}
    planned: dict[Path, str] = field(default_factory=dict)

    def plan(self, path: Path, text: str) -> Catalog:
        """Return these recipes as they will be once the file PATH holds TEXT. Nothing is written.

        Raise ProblemsError where TEXT is not one of a recipe's file.
        """
        document = parse_recipe(text, str(path))
        planned = {**self.planned, path: text}
        return Catalog(self.folders, self.policy, {**self.raw, path: document}, planned=planned)

    def text(self, path: Path) -> str:
        """Return the text of the recipe PATH as it is, or as it is planned."""
        planned = self.planned.get(path)
        return read_carried_text(path, path.parent, MAX_BYTES) if planned is None else planned

    def find(self, name: str) -> Recipe:
        """Return the recipe NAME: a full name, or the path of a file that holds one stack.

        Raise InputError, with the nearest name, where there is none.
        """
        if name.endswith(SUFFIX) and ("/" in name or _exists(name)):
            return self._read_only_stack(Path(name))
        for path, document in self._find_stacks(name, ()):
            return self._validate(path, document)
        known = self.names()
        versions = [full for full in known if full.startswith(f"{name}-")]
        hint = "hpcstack list shows all stacks"
        if versions:
            hint = f"say which version: {', '.join(versions)}"
        raise InputError(
            f"there is no stack {name!r}{did_you_mean(name, known)}",
            hint,
            page="build-my-own-stack",
        )

    def count_extended(self, recipe: Recipe) -> int:
        """Return how many stacks RECIPE extends, directly and by others; templates do not count."""
        path = recipe.path
        chain: tuple[Path, ...] = ()
        while True:
            extended = self._read_raw(path).value.get("extends", "_")
            if not isinstance(extended, str) or extended.startswith("_"):
                return len(chain)
            # A recipe may extend the one of the same name in a later folder.
            chain = (*chain, path.resolve())
            below = Catalog([path.parent, *self.folders], raw=self.raw, planned=self.planned)
            found = next(below._find_stacks(extended, chain), None)
            if found is None:
                return len(chain)
            path = found[0]

    def layer(self, name: str) -> tuple[str, tuple[str, ...]] | None:
        """Return (full name of the stack below, pip's packages) of a recipe that only adds those.

        A recipe that extends a stack and only adds packages of pip's to it needs no image of its
        own. None for every other recipe, and where there is none.
        """
        try:
            recipe = self.find(name)
            extended = self._read_raw(recipe.path).value.get("extends", "_")
            if not isinstance(extended, str) or extended.startswith("_"):
                return None
            folders = [recipe.path.parent, *self.folders]
            below = Catalog(folders, self.policy, self.raw).find(extended).stack
        except (InputError, ProblemsError):
            return None

        mine, theirs = recipe.stack.packages.pip, below.packages.pip
        added = mine[len(theirs) :]
        if not added or mine[: len(theirs)] != theirs:
            return None
        # Put those packages and these keys into the stack below: is it then this very stack?
        changed: dict[str, Any] = {key: getattr(recipe.stack, key) for key in MAY_DIFFER}
        changed["packages"] = below.packages.model_copy(update={"pip": mine})
        if below.model_copy(update=changed) != recipe.stack:
            return None
        return below.full_name, added

    def read(self, path: Path) -> list[Recipe]:
        """Return every stack of a file. Raise ProblemsError with all problems of all of them."""
        problems: list[Problem] = []
        out: list[Recipe] = []
        seen: set[str] = set()
        for document in self._expand(path, ()):
            name = _full_name(document.value)
            if name in seen:
                what = f"two stacks of this file have the name {name}"
                problems.append(document.problem(("name",), what))
            seen.add(name)
            try:
                out.append(self._validate(path, document))
            except ProblemsError as error:
                problems += error.problems
        if problems:
            raise ProblemsError(problems)
        return out

    def files(self) -> list[Path]:
        """Return every file that holds stacks, folder by folder; templates are not among them."""
        return [path for folder in self.folders for path in self._list_files(folder)]

    def _list_files(self, folder: Path) -> list[Path]:
        """Return the files of FOLDER that may hold stacks, sorted, with those that are planned."""
        planned = [path for path in self.planned if path.parent == folder]
        return sorted({*_list_files(folder), *planned})

    def names(self) -> dict[str, Path]:
        """Return {full name: file} of every stack whose file can be read."""
        out: dict[str, Path] = {}
        for path in self.files():
            try:
                names = [_full_name(document.value) for document in self._expand(path, ())]
            except ProblemsError:
                continue
            for name in names:
                out.setdefault(name, path)
        return dict(sorted(out.items()))

    def _read_only_stack(self, path: Path) -> Recipe:
        """Return the one stack of the file PATH. Raise InputError where it holds more."""
        found = self.read(path)
        if len(found) > 1:
            names = ", ".join(recipe.stack.full_name for recipe in found)
            raise InputError(
                f"{path} contains {len(found)} stacks: {names}",
                f"name one, with --recipes {path.parent}",
            )
        return found[0]

    def _find_stacks(self, name: str, chain: tuple[Path, ...]) -> Iterator[tuple[Path, Document]]:
        """Yield where the stack NAME is, first to last, without the files of CHAIN.

        In a folder the longest file name goes first: it says the most of the full name.
        """
        for folder in self.folders:
            here = [
                path
                for path in self._list_files(folder)
                if _may_hold(path, name) and path.resolve() not in chain
            ]
            for path in sorted(here, key=lambda path: -len(path.name)):
                for document in self._expand(path, chain):
                    if _full_name(document.value) == name:
                        yield path, document

    def _expand(self, path: Path, chain: tuple[Path, ...]) -> list[Document]:
        """Return a document for each stack of the file PATH."""
        return expand_matrix(self._merge_extended(path, chain))

    def _merge_extended(self, path: Path, chain: tuple[Path, ...]) -> Document:
        """Return the file PATH merged over all that it extends.

        CHAIN are the files that are being read on the way to it.
        """
        document = self._read_raw(path)
        if "extends" not in document.value:
            return document
        self.looked = self.looked + 1 if chain else 0
        if self.looked > MAX_LOOKED:
            what = f"extends leads through more than {MAX_LOOKED} files"
            raise ProblemsError([document.problem(("extends",), what)])
        name = document.value["extends"]
        if not isinstance(name, str) or not EXTENDED.fullmatch(name):
            what = "name one stack or template, e.g. extends: _ngc"
            raise ProblemsError([document.problem(("extends",), what)])

        try:
            parent = strip_own_keys(
                self._find_parent(document, name, path, (*chain, path.resolve()))
            )
        except ProblemsError as error:
            problems = list(error.problems)
            if not chain:  # the file that was asked for: also say what is wrong in it
                problems += _find_own_problems(document)
            raise ProblemsError(problems) from None
        whole = merge_documents(parent, document)
        del whole.value["extends"]
        return whole

    def _find_parent(
        self, child: Document, name: str, path: Path, chain: tuple[Path, ...]
    ) -> Document:
        """Return what CHILD, which the file PATH holds, extends: the stack or template NAME.

        Raise ProblemsError where there is none, or only one of CHAIN, which are being read.
        """
        if name.startswith("_"):
            folders = [path.parent, *self.folders]
            for folder in folders:
                file = folder / f"{name}{SUFFIX}"
                if file.is_file() and file.resolve() not in chain:
                    return self._merge_extended(file, chain)
            found = [file for folder in folders for file in folder.glob(f"_*{SUFFIX}")]
        else:
            folders = list(self.folders)
            if path.parent not in folders:
                folders.insert(0, path.parent)
            other = Catalog(folders, raw=self.raw, looked=self.looked, planned=self.planned)
            try:
                for _, document in other._find_stacks(name, chain):
                    return document
            finally:
                self.looked = other.looked
            found = self.files()

        others = [file for file in found if file.resolve() not in (path.resolve(), *chain)]
        known = [one for file in others for one in self._names_in(file)]
        what = f"there is nothing to extend named {name!r}{did_you_mean(name, known)}"
        if any(_may_hold(file, name) for file in chain):
            what += "; a recipe cannot extend itself, directly or by others"
        raise ProblemsError([child.problem(("extends",), what)])

    def _names_in(self, file: Path) -> list[str]:
        """Return the names that FILE itself has, for a hint.

        They are a template's name, or a stack's with each of its versions.
        """
        stem = file.name.removesuffix(SUFFIX)
        try:
            value = self._read_raw(file).value
        except ProblemsError:
            return [stem]
        if stem.startswith("_"):
            return [stem]
        axes = value.get("matrix")
        versions = axes.get("version") if isinstance(axes, dict) else None
        if isinstance(versions, (dict, list)) and versions:
            return [f"{value.get('name')}-{version}" for version in versions]
        return [_full_name(value)]

    def _read_raw(self, path: Path) -> Document:
        """Return the file PATH as it is written; each is read once."""
        if path not in self.raw:
            self.raw[path] = _load(path)
        return self.raw[path]

    def _validate(self, path: Path, document: Document) -> Recipe:
        """Return the validated recipe, with the site's policy merged in.

        Raise ProblemsError with all that is wrong with it.
        """
        if self.policy.defaults:
            document = merge_documents(self.policy.defaults, document)
        if self.policy.force:
            document = merge_documents(document, self.policy.force)
        if self.policy.defaults or self.policy.force:
            document = fill_tokens(document)

        document, problems = _read_sources(resolve_replacements(document))
        document, project, wrong = _read_project(document)
        problems += wrong
        try:
            stack = Stack.model_validate(document.value)
        except ValidationError as error:
            raise ProblemsError([*problems, *list_problems(error, document, Stack)]) from None
        if problems:
            raise ProblemsError(problems)

        full_name = stack.full_name
        if not _may_hold(path, full_name):
            what = (
                f"the file of {full_name} must be named {full_name}{SUFFIX}, "
                f"or {stack.name}{SUFFIX}"
            )
            raise ProblemsError([document.problem(("name",), what)])
        return Recipe(stack, path, document, project)


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:  # a name that is longer than any file's
        return False


def _list_files(folder: Path) -> list[Path]:
    """Return the files of FOLDER that may hold stacks, sorted."""
    found = (path for path in folder.glob(f"*{SUFFIX}") if not path.name.startswith(("_", ".")))
    return sorted(path for path in found if not path.is_dir())


def _may_hold(path: Path, name: str) -> bool:
    """Return whether the file PATH may hold the stack NAME, by the file's name."""
    stem = path.name.removesuffix(SUFFIX)
    return name == stem or name.startswith(f"{stem}-")


def _full_name(value: dict[str, Any]) -> str:
    """Return the full name of the stack that a document's VALUE states, which may be incomplete."""
    parts = [value.get(key) or "" for key in ("name", "version", "variant")]
    return "-".join(str(part) for part in parts if part)


def _load(path: Path) -> Document:
    """Read the recipe PATH. Raise ProblemsError where it is no recipe's file at all."""
    try:
        text = read_carried_text(path, path.parent, MAX_BYTES)
    except ValueError as error:
        raise ProblemsError([Problem(str(path), 1, 1, "", str(error))]) from None
    return parse_recipe(text, str(path))


def parse_recipe(text: str, file: str) -> Document:
    """Return TEXT, which FILE holds, as a Document. Raise ProblemsError where it is no recipe's."""
    document = parse_yaml(text, file)
    if not isinstance(document.value, dict):
        what = "a recipe is a mapping that begins with apiVersion: hpcstack/v1"
        raise ProblemsError([document.problem((), what)])
    if document.value.get("apiVersion", FORMAT) != FORMAT:
        given = document.value["apiVersion"]
        what = f"input should be {FORMAT!r} (it is {given!r})"
        raise ProblemsError([document.problem(("apiVersion",), what)])
    return document


def _find_own_problems(document: Document) -> list[Problem]:
    """Return what is wrong in a file whatever it extends, for one whose parent cannot be read."""
    alone = Document(document.file, {**document.value}, document.marks, document.keys)
    del alone.value["extends"]
    found: set[Problem] = set()
    try:
        for each in expand_matrix(alone):
            each, problems = _read_sources(resolve_replacements(each))
            each, _, wrong = _read_project(each)
            found.update([*problems, *wrong])
            try:
                Stack.model_validate(each.value)
            except ValidationError as error:
                found.update(list_problems(error, each, Stack, whole=False))
    except ProblemsError as error:
        found.update(error.problems)
    return sorted(found)


def _read_sources(document: Document) -> tuple[Document, list[Problem]]:
    """Return DOCUMENT with the text of each file that `files` names by `source`, and the problems.

    A source is read beside the recipe that names it. One that cannot be read leaves the text empty.
    """
    problems: list[Problem] = []
    files = document.value.get("files")
    if not isinstance(files, list):
        return document, problems
    if not any(isinstance(entry, dict) and "source" in entry for entry in files):
        return document, problems

    out = []
    for n, entry in enumerate(files):
        if not isinstance(entry, dict) or not isinstance(entry.get("source"), str):
            out.append(entry)
            continue
        path = ("files", n, "source")
        folder = Path(document.mark(path).file).parent
        try:
            if "content" in entry:
                raise ValueError("say `content` or `source`, not both")
            out.append({**entry, "content": _read_source(folder, entry["source"])})
        except ValueError as error:
            problems.append(document.problem(path, str(error)))
            out.append({**entry, "content": entry.get("content", "")})
    value = {**document.value, "files": out}
    return Document(document.file, value, document.marks, document.keys), problems


def _read_source(folder: Path, source: str) -> str:
    """Return the text of SOURCE below FOLDER. Raise ValueError, which says why, for any other."""
    path = folder / source
    # What is named must lie beside the recipe, whatever it leads to.
    place = Path(os.path.normpath(source))
    if place.is_absolute() or ".." in place.parts:
        raise ValueError("a source lies beside the recipe or below: not an absolute path, not '..'")
    try:
        text = read_carried_text(path, folder, MAX_SCRIPT)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; what is large or binary belongs in a package") from None
    if "\r" in text or text.startswith("\ufeff"):
        raise ValueError(
            f"{path} has Windows line ends or a byte order mark: save it as plain UTF-8"
        )
    return text


def _read_project(
    document: Document,
) -> tuple[Document, ProjectRequirements | None, list[Problem]]:
    """Return DOCUMENT with what its project asks for added to its packages, and the problems.

    The project's folder is beside the recipe that names it, or below.
    """
    packages = document.value.get("packages")
    said = packages.get("project") if isinstance(packages, dict) else None
    if isinstance(said, str):
        said = {"folder": said}
    if not isinstance(said, dict) or not isinstance(said.get("folder"), str):
        return document, None, []  # there is none, or the model says what is wrong with it

    from hpcstack.requirements.for_recipe import read_project

    path = ("packages", "project")
    folder = Path(document.mark(path).file).parent
    own = folder / said["folder"]
    try:
        if Path(said["folder"]).is_absolute() or not _is_below(own, folder):
            raise ValueError(
                "a project lies beside the recipe or below: not an absolute path, not '..'"
            )
        lists = [tuple(map(str, said.get(key) or ())) for key in ("extras", "groups")]
        project = read_project(own, *lists)
    except (ValueError, OSError, RuntimeError) as error:
        return document, None, [document.problem(path, str(error))]
    except InputError as error:
        return document, None, [document.problem(path, f"{error.message}; {error.hint}")]

    added = {"pip": project.requirements, "constraints": project.pins}
    merged = {key: [*(packages.get(key) or ()), *more] for key, more in added.items()}
    value = {**document.value, "packages": {**packages, **merged}}
    return Document(document.file, value, document.marks, document.keys), project, []


def _is_below(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _leaf_paths(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each value within VALUE that has nothing within it."""
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict) and value:
        items = value.items()
    elif isinstance(value, list) and value:
        items = enumerate(value)
    else:
        yield path
    for key, item in items:
        yield from _leaf_paths(item, (*path, key))
