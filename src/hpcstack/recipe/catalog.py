"""Recipes on disk: finding one by its full name, reading it with all that it extends, listing all.

A file is named after what its stacks' full names begin with: pytorch.yaml may hold pytorch-24.11
and pytorch-24.11-vision, so that finding one opens few files. One whose name begins with `_` is a
template: it is only extended.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from hpcstack.core.errors import InputError, Problem, ProblemsError, did_you_mean
from hpcstack.core.yaml import (
    MAX_BYTES,
    Document,
    format_path,
    parse_yaml,
    problems_of,
    read_yaml_text,
)
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

SUFFIX = ".yaml"
FORMAT = "hpcstack/v1"
NAMES = ("name", "version", "variant", "summary", "lifecycle", "tests")  # what makes no other image
MAX_LOOKED = 100
EXTENDED = re.compile(r"_?[A-Za-z0-9][A-Za-z0-9._+-]{0,160}")


@dataclass(frozen=True)
class Recipe:
    """A stack, the file that states it, and the effective spec with the place of each value."""

    stack: Stack
    path: Path
    document: Document

    def origins(self) -> dict[str, str]:
        """{dotted path: file:line} of each value that was written somewhere."""
        return {
            format_path(path): str(self.document.mark(path))
            for path in _leaves(self.document.value, ())
        }


@dataclass
class Catalog:
    """The recipes of some folders; a stack in an earlier folder hides one of the same name in a
    later.
    """

    folders: Sequence[Path]
    policy: Policy = field(default_factory=Policy)
    raw: dict[Path, Document] = field(default_factory=dict)
    looked: int = 0  # how many files were opened for what one recipe extends

    def find(self, name: str) -> Recipe:
        """The recipe NAME: a full name, or the path of a file that holds one stack."""
        if name.endswith(SUFFIX) and ("/" in name or _exists(name)):
            return self._only(Path(name))
        for path, document in self._stacks(name, ()):
            return self._recipe(path, document)
        known = self.names()
        versions = [full for full in known if full.startswith(f"{name}-")]
        hint = (
            f"say which version: {', '.join(versions)}"
            if versions
            else "hpcstack list shows all stacks"
        )
        raise InputError(f"there is no stack {name!r}{did_you_mean(name, known)}", hint)

    def layer(self, name: str) -> tuple[str, tuple[str, ...]] | None:
        """(the stack below, pip's packages) of a recipe that extends a stack and only adds packages
        of pip's to it.

        Such a stack needs no image of its own. None for every other recipe, and for none.
        """
        try:
            recipe = self.find(name)
            extended = self._raw(recipe.path).value.get("extends", "_")
            if not isinstance(extended, str) or extended.startswith("_"):
                return None
            folders = [recipe.path.parent, *self.folders]
            below = Catalog(folders, self.policy, self.raw).find(extended).stack
        except (InputError, ProblemsError):
            return None
        mine, theirs = recipe.stack.packages.pip, below.packages.pip
        packages = below.packages.model_copy(update={"pip": mine})
        like = below.model_copy(
            update={"packages": packages, **{key: getattr(recipe.stack, key) for key in NAMES}}
        )
        added = mine[len(theirs) :]
        return (
            (below.full_name, added)
            if like == recipe.stack and mine[: len(theirs)] == theirs and added
            else None
        )

    def read(self, path: Path) -> list[Recipe]:
        """Every stack of a file; all problems of all of them are in the ProblemsError that it
        raises.
        """
        problems: list[Problem] = []
        out: list[Recipe] = []
        seen: set[str] = set()
        for document in self._expanded(path, ()):
            name = _full_name(document.value)
            if name in seen:
                problems.append(
                    document.problem(("name",), f"two stacks of this file have the name {name}")
                )
            seen.add(name)
            try:
                out.append(self._recipe(path, document))
            except ProblemsError as error:
                problems += error.problems
        if problems:
            raise ProblemsError(problems)
        return out

    def files(self) -> list[Path]:
        """Every file that holds stacks, folder by folder; templates are not among them."""
        return [path for folder in self.folders for path in _files(folder)]

    def names(self) -> dict[str, Path]:
        """{full name: file} of every stack, as far as their files can be read."""
        out: dict[str, Path] = {}
        for path in self.files():
            try:
                names = [_full_name(document.value) for document in self._expanded(path, ())]
            except ProblemsError:
                continue
            for name in names:
                out.setdefault(name, path)
        return dict(sorted(out.items()))

    def _only(self, path: Path) -> Recipe:
        found = self.read(path)
        if len(found) > 1:
            names = ", ".join(recipe.stack.full_name for recipe in found)
            raise InputError(
                f"{path} contains {len(found)} stacks: {names}",
                f"name one, with --recipes {path.parent}",
            )
        return found[0]

    def _stacks(self, name: str, chain: tuple[Path, ...]) -> Iterator[tuple[Path, Document]]:
        """Where the stack NAME is, first to last, leaving out the files of CHAIN."""
        for folder in self.folders:
            here = [
                path
                for path in _files(folder)
                if _may_hold(path, name) and path.resolve() not in chain
            ]
            for path in sorted(here, key=lambda path: -len(path.name)):
                for document in self._expanded(path, chain):
                    if _full_name(document.value) == name:
                        yield path, document

    def _expanded(self, path: Path, chain: tuple[Path, ...]) -> list[Document]:
        return expand_matrix(self._whole(path, chain))

    def _whole(self, path: Path, chain: tuple[Path, ...]) -> Document:
        """The file PATH over all that it extends.

        CHAIN are the files that are being read for it.
        """
        document = self._raw(path)
        if "extends" not in document.value:
            return document
        self.looked = self.looked + 1 if chain else 0
        if self.looked > MAX_LOOKED:
            raise ProblemsError(
                [document.problem(("extends",), f"it leads through more than {MAX_LOOKED} files")]
            )
        name = document.value["extends"]
        if not isinstance(name, str) or not EXTENDED.fullmatch(name):
            raise ProblemsError(
                [document.problem(("extends",), "name one stack or template, e.g. extends: _ngc")]
            )
        try:
            parent = strip_own_keys(self._parent(document, name, path, (*chain, path.resolve())))
        except ProblemsError as error:
            raise ProblemsError(
                [*error.problems, *([] if chain else _own_problems(document))]
            ) from None
        whole = merge_documents(parent, document)
        del whole.value["extends"]
        return whole

    def _parent(self, child: Document, name: str, path: Path, chain: tuple[Path, ...]) -> Document:
        if name.startswith("_"):
            folders = [path.parent, *self.folders]
            for file in (folder / f"{name}{SUFFIX}" for folder in folders):
                if file.is_file() and file.resolve() not in chain:
                    return self._whole(file, chain)
            found = [file for folder in folders for file in folder.glob(f"_*{SUFFIX}")]
        else:
            folders = (
                [path.parent, *self.folders]
                if path.parent not in self.folders
                else list(self.folders)
            )
            other = Catalog(folders, raw=self.raw, looked=self.looked)
            try:
                for _, document in other._stacks(name, chain):
                    return document
            finally:
                self.looked = other.looked
            found = self.files()
        others = [file for file in found if file.resolve() not in (path.resolve(), *chain)]
        known = [one for file in others for one in self._names_in(file)]
        what = f"there is nothing to extend named {name!r}{did_you_mean(name, known)}"
        if any(file.name == f"{name}{SUFFIX}" or _may_hold(file, name) for file in chain):
            what += "; a recipe cannot extend itself, directly or by others"
        raise ProblemsError([child.problem(("extends",), what)])

    def _names_in(self, file: Path) -> list[str]:
        """The names that FILE says itself, for a hint: a template's, or a stack's with each of its
        versions.
        """
        stem = file.name.removesuffix(SUFFIX)
        try:
            value = self._raw(file).value
        except ProblemsError:
            return [stem]
        axes = value.get("matrix")
        versions = axes.get("version") if isinstance(axes, dict) else None
        each = [str(one) for one in versions] if isinstance(versions, (dict, list)) else []
        own = [f"{value.get('name')}-{one}" for one in each] or [_full_name(value)]
        return [stem] if stem.startswith("_") else own

    def _raw(self, path: Path) -> Document:
        if path not in self.raw:
            self.raw[path] = _load(path)
        return self.raw[path]

    def _recipe(self, path: Path, document: Document) -> Recipe:
        """The validated recipe; ProblemsError holds all that is wrong with it."""
        if self.policy.defaults:
            document = merge_documents(self.policy.defaults, document)
        if self.policy.force:
            document = merge_documents(document, self.policy.force)
        if self.policy.defaults or self.policy.force:
            document = fill_tokens(document)
        document, problems = _with_sources(resolve_replacements(document))
        try:
            stack = Stack.model_validate(document.value)
        except ValidationError as error:
            raise ProblemsError([*problems, *problems_of(error, document, Stack)]) from None
        if problems:
            raise ProblemsError(problems)
        if not _may_hold(path, stack.full_name):
            what = (
                f"the file of {stack.full_name} must be named {stack.full_name}{SUFFIX}, or "
                f"{stack.name}{SUFFIX}"
            )
            raise ProblemsError([document.problem(("name",), what)])
        return Recipe(stack, path, document)


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:  # longer than any name of a file
        return False


def _files(folder: Path) -> list[Path]:
    found = (path for path in folder.glob(f"*{SUFFIX}") if not path.name.startswith(("_", ".")))
    return sorted(path for path in found if not path.is_dir())


def _may_hold(path: Path, name: str) -> bool:
    stem = path.name.removesuffix(SUFFIX)
    return name == stem or name.startswith(f"{stem}-")


def _full_name(value: dict[str, Any]) -> str:
    parts = [value.get(key) or "" for key in ("name", "version", "variant")]
    return "-".join(str(part) for part in parts if part)


def _load(path: Path) -> Document:
    try:
        text = read_yaml_text(path, MAX_BYTES)
        _in_its_folder(path)
        document = parse_yaml(text, str(path))
    except ValueError as error:
        raise ProblemsError([Problem(str(path), 1, 1, "", str(error))]) from None
    if not isinstance(document.value, dict):
        raise ProblemsError(
            [document.problem((), "a recipe is a mapping that begins with apiVersion: hpcstack/v1")]
        )
    if document.value.get("apiVersion", FORMAT) != FORMAT:
        said = document.value["apiVersion"]
        raise ProblemsError(
            [document.problem(("apiVersion",), f"input should be {FORMAT!r} (it is {said!r})")]
        )
    return document


def _in_its_folder(path: Path) -> None:
    """ValueError for a recipe that is a link out of its folder: git carries links."""
    try:
        inside = not path.is_symlink() or path.resolve().is_relative_to(path.parent.resolve())
    except (OSError, RuntimeError):
        raise ValueError("a symlink that leads to itself") from None
    if not inside:
        raise ValueError(
            "a symlink that leads out of its folder; put the file itself there, or name its folder"
        )


def _own_problems(document: Document) -> list[Problem]:
    """What is wrong in a file whatever it extends: for one that extends what cannot be read."""
    alone = Document(document.file, {**document.value}, document.marks, document.keys)
    del alone.value["extends"]
    found: set[Problem] = set()
    try:
        for each in expand_matrix(alone):
            each, problems = _with_sources(resolve_replacements(each))
            found.update(problems)
            try:
                Stack.model_validate(each.value)
            except ValidationError as error:
                found.update(problems_of(error, each, Stack, whole=False))
    except ProblemsError as error:
        found.update(error.problems)
    return sorted(found)


def _with_sources(document: Document) -> tuple[Document, list[Problem]]:
    """DOCUMENT with the text of each file that `files` names by `source`, read beside the recipe
    that says so.

    And what is wrong with them; such a file is empty.
    """
    problems: list[Problem] = []
    files = document.value.get("files")
    if not isinstance(files, list) or not any(
        isinstance(entry, dict) and "source" in entry for entry in files
    ):
        return document, problems
    out = []
    for n, entry in enumerate(files):
        if not isinstance(entry, dict) or not isinstance(entry.get("source"), str):
            out.append(entry)
            continue
        path = ("files", n, "source")
        try:
            if "content" in entry:
                raise ValueError("say `content` or `source`, not both")
            out.append(
                {**entry, "content": _text(Path(document.mark(path).file).parent, entry["source"])}
            )
        except ValueError as error:
            problems.append(document.problem(path, str(error)))
            out.append({**entry, "content": entry.get("content", "")})
    return Document(
        document.file, {**document.value, "files": out}, document.marks, document.keys
    ), problems


def _text(folder: Path, source: str) -> str:
    """The text of SOURCE below FOLDER; ValueError says why it is not taken."""
    path = folder / source
    try:
        outside = Path(source).is_absolute() or not path.resolve().is_relative_to(folder.resolve())
        if path.is_symlink():
            path.stat()  # Python 3.13 resolves what leads to itself without a word
    except (OSError, RuntimeError) as error:
        what = "nowhere" if isinstance(error, FileNotFoundError) else "to itself"
        raise ValueError(f"{source} is a symlink that leads {what}") from None
    if outside:
        raise ValueError("a source lies beside the recipe or below: not an absolute path, not '..'")
    try:
        text = read_yaml_text(path, MAX_SCRIPT)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; what is large or binary belongs in a package") from None
    if "\r" in text or text.startswith("\ufeff"):
        raise ValueError(
            f"{path} has Windows line ends or a byte order mark: save it as plain UTF-8"
        )
    return text


def _leaves(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict) and value:
        items = value.items()
    elif isinstance(value, list) and value:
        items = enumerate(value)
    else:
        yield path
    for key, item in items:
        yield from _leaves(item, (*path, key))
