"""The image and the stack that a text means, for all verbs alike.

By a stack's name everybody means the same image: that of the loaded module of that stack; else the
one that is published; else the one that was built last. Where a newer release waits, or an image was built since
that is in no release, `ChosenImage.note` says so, and how to name it.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, ProblemsError, StoreError
from hpcstack.releases.inputs import stamp_today
from hpcstack.releases.ledger import Dates
from hpcstack.releases.modulerc import describe_refusal
from hpcstack.releases.published import read_published
from hpcstack.releases.records import read_record
from hpcstack.releases.seal import check_seal
from hpcstack.releases.tree import open_tree
from hpcstack.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcstack.recipe.catalog import Catalog
    from hpcstack.releases.ledger import Entry
    from hpcstack.releases.published import PublishedName
    from hpcstack.releases.tree import Tree
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store

BUILT = "built"  # STACK@built: the image that was built last, whatever is published
SHORTEST_KEY = 6  # characters of a key that mean an image
MOST_NAMED = 5  # stacks that a refusal names
OF_IMAGES, OF_RECIPES = (".sqsh", ".sif"), (".yaml",)
# A release as its module is called: NAME/VERSION
RELEASED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}/[A-Za-z0-9][A-Za-z0-9._+-]{0,139}")


@dataclass(frozen=True)
class NamedStack:
    """The stack that a text means, and the release of it where it names one."""

    stack: str  # the full name, pytorch-24.11
    release: str = ""  # pytorch/24.11-r2


@dataclass(frozen=True)
class ChosenImage:
    """The image that a text means."""

    artifact: Artifact
    why: str  # why this one
    doubt: str = ""  # what may not be as its users expect; empty where all is well
    release: str = ""  # that it is; empty where it is none
    layer: tuple[str, ...] = ()  # packages of pip's that the named stack adds to this image
    # What else the text could have meant:
    newer: str = ""  # a newer release of the version, `pytorch/24.11-r2 in testing`
    built_since: Artifact | None = None  # the image of the stack built last, which is in no release

    @property
    def note(self) -> str:
        """What else the text could have meant, and how to name that; empty for nothing."""
        says = f"{self.artifact.stack} means {self.release or 'the image of the loaded module'}"
        if self.newer:
            return f"{says}; newer is {self.newer}: name it to mean it"
        if self.built_since:
            return (
                f"{says}; another image was built since, {self.built_since.key[:12]}: "
                f"{self.artifact.stack}@{BUILT} means that one"
            )
        return ""


@dataclass(frozen=True)
class ImageFile:
    """The file of an image, and its record where the store has it under any name."""

    path: Path
    stored: Artifact | None
    note: str = ""  # what else the text could have meant


@dataclass(frozen=True)
class Names:
    """Where names are looked up.

    SITE is as the nodes see it that the image is for, and PLATFORM is theirs (linux/amd64), empty
    where it is not known. ENVIRON has the variables of a loaded module. CATALOG is called only where
    a recipe decides: who loads a module need not have its recipe.
    """

    site: Site
    environ: Mapping[str, str]
    catalog: Callable[[], Catalog]
    platform: str = ""

    @cached_property
    def store(self) -> Store:
        """The store of images."""
        return open_store(self.site)

    @cached_property
    def tree(self) -> Tree:
        """The module tree."""
        return open_tree(self.site)

    # -- stacks

    def find_stack(self, text: str) -> NamedStack:
        """Return the stack that TEXT means; where TEXT is empty, that of the loaded module.

        A recipe's file, a key and STACK@ENGINE mean their stack. What is not published is taken as
        it is written, NAME/VERSION as NAME-VERSION. InputError where TEXT is empty and no module is
        loaded, and for a name alone that has no default.
        """
        if text.endswith(OF_RECIPES):
            return NamedStack(self.catalog().find(text).stack.full_name)
        text = text.partition("@")[0]
        loaded = self.environ.get("HPCSTACK_STACK", "")
        if not text and not loaded:
            raise InputError(
                "which stack? no module of one is loaded",
                "module load NAME/VERSION, or name a stack: hpcstack list",
                page="see-what-a-launch-did",
            )
        if not text:
            return NamedStack(loaded)

        found = read_published(text, self.tree)
        if found is None or not found.is_known:
            by_key = self._find_by_key(text)
            return NamedStack(by_key.artifact.stack if by_key else text.replace("/", "-", 1))
        name = found.ledger.name
        if found.rest:
            release = f"{name}/{found.release}" if found.release else ""
            return NamedStack(f"{name}-{found.version}", release)
        if any(loaded == f"{name}-{one.version}" for one in found.ledger.entries):
            return NamedStack(loaded)
        if not found.ledger.default:
            raise InputError(
                f"{name} has no default version",
                f"hpcstack status {name}",
                page="promote-a-release",
            )
        return NamedStack(f"{name}-{found.default_version}")

    # -- images

    def find_image(self, text: str, *, retired: bool = False) -> ChosenImage:
        """Return the stored image that TEXT means.

        RETIRED: also that of a retired version, for verbs that run nothing. InputError where TEXT
        means no image, or several; StoreError where the image of what is published is gone, or is
        not the one that was published.
        """
        if is_image_file(text) or self._is_other_file(text):
            return self._find_stored_file(text)
        stack, at, how = text.partition("@")
        if at and not text.endswith(OF_RECIPES):
            return self._find_built(stack, how)
        found = self._find_by_key(text)
        if found:
            return found
        return self._find_image_of(self.find_stack(text), retired=retired)

    def find_image_to_run(self, text: str) -> ChosenImage:
        """Return the image that TEXT means, to run something in it.

        The image of a stack that only adds packages of pip's to another, and has none of its own,
        is the other's, with `layer`. Where TEXT means none, the refusal names what could be run.
        """
        try:
            return self.find_image(text)
        except InputError as refused:
            if is_image_file(text):
                raise
            stack = text if text.endswith(OF_RECIPES) else self.find_stack(text).stack
            recipes = self.catalog()
            layer = recipes.layer(stack)
            if layer is None:
                self._check_known(stack)
                raise
            below, packages = layer
            try:
                found = self._find_image_of(NamedStack(below))
            except InputError:
                raise refused from None
            why = f"{below}, {found.why}, and a layer of {', '.join(packages)}"
            return replace(found, why=why, layer=packages)

    def find_image_file(self, text: str) -> ImageFile:
        """Return the file of the image that TEXT means, in the store or not.

        InputError where there is none.
        """
        if not is_image_file(text) and not self._is_other_file(text):
            chosen = self.find_image(text, retired=True)
            return ImageFile(chosen.artifact.image, chosen.artifact, chosen.note)
        path = Path(text).expanduser().absolute()
        if not path.is_file():
            raise InputError(f"{path} does not exist", "hpcstack images shows what is stored")
        images = self.store.images()
        return ImageFile(path, next((one for one in images if one.image.samefile(path)), None))

    def _is_other_file(self, text: str) -> bool:
        """Return whether TEXT is a file's name that is no name of a stack here."""
        if not text or text.endswith(OF_RECIPES) or not Path(text).is_file():
            return False
        is_stack = self.store.newest(text.replace("/", "-")) is not None
        return not is_stack and read_published(text, self.tree) is None

    def _find_stored_file(self, text: str) -> ChosenImage:
        """Return the stored image whose file TEXT names. InputError where the store has it not."""
        named = self.find_image_file(text)
        if not named.stored:
            raise InputError(
                f"{named.path} is not in the store {self.store.top}",
                "hpcstack verify --signature is for any file",
                page="sign-images",
            )
        return ChosenImage(named.stored, "its file was named")

    def _find_built(self, text: str, how: str) -> ChosenImage:
        """Return the newest image of a stack by the engine HOW, or by any for HOW `built`."""
        stack = self.find_stack(text).stack
        if how == BUILT:
            return ChosenImage(
                find_newest_image(stack, self.store, self.platform), "the image built last"
            )
        found = [one for one in self.store.images() if (one.stack, one.engine) == (stack, how)]
        if not found:
            raise InputError(
                f"the store has no image of {stack} by an engine {how!r}",
                f"{stack}@{BUILT} is the one that was built last; hpcstack images --all shows all",
            )
        return ChosenImage(found[-1], f"the image built last by {how}")

    def _find_by_key(self, text: str) -> ChosenImage | None:
        """Return the image whose key begins with TEXT; None where TEXT is no key's beginning."""
        if len(text) < SHORTEST_KEY or not re.fullmatch("[0-9a-f]+", text):
            return None
        found = _list_by_key(text, self.store)
        if len(found) > 1:
            several = ", ".join(one.key[: len(text) + 6] for one in found)
            raise InputError(
                f"{text} is the beginning of several keys: {several}", "hpcstack images --all"
            )
        return ChosenImage(found[0], "its key was named") if found else None

    def _find_image_of(self, meant: NamedStack, *, retired: bool = False) -> ChosenImage:
        """Return the image of MEANT: the loaded module's, else the published one, else the newest."""
        loaded, doubt = self._find_loaded(meant)
        if loaded:
            return self._with_others(meant, loaded)

        # Where the module is of another kind of machine, its release is, too.
        found = self._find_released(replace(meant, release="") if doubt else meant, retired=retired)
        if not found:
            newest = find_newest_image(meant.stack, self.store, self.platform)
            return ChosenImage(newest, "not published: the image built last", doubt)
        doubts = "; ".join(filter(None, (doubt, found.doubt)))
        return self._with_others(meant, replace(found, doubt=doubts))

    def _find_loaded(self, meant: NamedStack) -> tuple[ChosenImage | None, str]:
        """Return the loaded module's image if MEANT means it, and a doubt where it cannot serve."""
        environ, store = self.environ, self.store
        release = environ.get("HPCSTACK_RELEASE", "")
        is_meant = environ.get("HPCSTACK_STACK") == meant.stack and meant.release in ("", release)
        image = environ.get("HPCSTACK_IMAGE", "")
        named = release or "module"
        loaded = store.artifact(Path(image).parent.name) if is_meant else None
        if not is_meant or not image:
            return None, ""
        if not loaded or str(loaded.image) != image:
            return (
                None,
                f"the image of the loaded {named}, {image}, is not in the store {store.top}",
            )
        if self.site.tree_platform not in ("", loaded.platform):
            # The module was loaded on another kind of machine than the nodes are: the same stack
            # for theirs is taken, and that is said.
            return None, (
                f"the loaded {release} is for {loaded.platform}, and these nodes take "
                f"{self.site.tree_platform}"
            )
        # A release that is none, in a variable, is no release of the image.
        if not RELEASED.fullmatch(release):
            return ChosenImage(loaded, "the loaded module"), ""
        changed = check_seal(release, loaded, self.site, store)
        doubt = f"the image of {release} {changed}" if changed else ""
        return ChosenImage(loaded, f"module {release}", doubt, release), ""

    def _find_released(self, meant: NamedStack, *, retired: bool) -> ChosenImage | None:
        """Return the image of the release that MEANT means; None where nothing of it is published.

        InputError where that is removed, or where the version is retired and may not be.
        """
        found = read_published(meant.stack, self.tree)
        if found is None or not found.version:
            return None
        entry = self._find_entry(found, meant.release, retired=retired)
        if not entry:
            return None
        release = f"{found.ledger.name}/{entry.release}"
        artifact = self._read_image(found.ledger.name, entry)
        changed = check_seal(release, artifact, self.site, self.store)
        doubt = f"the image of {release} {changed}" if changed else ""
        return ChosenImage(artifact, f"release {release} in {entry.channel}", doubt, release)

    def _find_entry(self, found: PublishedName, release: str, *, retired: bool) -> Entry | None:
        """Return the named RELEASE of what was FOUND, else the one that its version means now."""
        ledger, version = found.ledger, found.version
        dates = ledger.dates.get(version, Dates())
        if dates.refuses(stamp_today()) and not retired:
            raise InputError(
                describe_refusal(f"{ledger.name}/{version}", dates),
                f"hpcstack status {ledger.name}",
                page="retire-a-release",
            )
        if not release:
            return ledger.aliased(version)
        entry = ledger.entry(release.partition("/")[2])
        if entry.state in ("removed", "gone"):
            raise InputError(
                f"{release} was removed",
                f"hpcstack status {ledger.name}",
                page="retire-a-release",
            )
        return entry

    def _read_image(self, name: str, entry: Entry) -> Artifact:
        """Return the image of a release of NAME.

        StoreError where it is gone, or its record in the store says that it is another.
        """
        release = f"{name}/{entry.release}"
        stack = f"{name}-{entry.version}"
        record = read_record(self.store, name, entry.release)
        artifact = self.store.artifact(record.key) if record else None
        if not artifact:
            raise StoreError(
                f"{release} is published in {entry.channel}, and its image is gone",
                f"hpcstack build {stack}",
                page="repair-what-is-published",
            )

        # Whoever may write to the store can write both an image and its record there.
        if artifact.sha256 != entry.sha256:
            raise StoreError(
                f"the image of {release} is not the one that was published: sha256 "
                f"{artifact.sha256[:12]}, not {entry.sha256[:12]}",
                "tell the site's administrators: hpcstack status --check",
                page="repair-what-is-published",
            )
        if artifact.stack != stack:
            raise StoreError(
                f"the image of {release} says that it is one of {artifact.stack or 'no stack'}",
                "tell the site's administrators: hpcstack status --check",
                page="repair-what-is-published",
            )
        return artifact

    def _with_others(self, meant: NamedStack, chosen: ChosenImage) -> ChosenImage:
        """Return CHOSEN with what else MEANT could mean. Who names a release means that one."""
        if meant.release:
            return chosen
        artifact = chosen.artifact
        found = read_published(artifact.stack, self.tree)
        entries = found.ledger.of(found.version) if found else []
        live = [entry for entry in entries if entry.state == "live"]
        if found and live and live[-1].sha256 != artifact.sha256:
            newer = f"{found.ledger.name}/{live[-1].release} in {live[-1].channel}"
            return replace(chosen, newer=newer)

        newest = self.store.newest_for(artifact.stack, artifact.platform)
        known = {artifact.sha256, *(entry.sha256 for entry in entries)}
        return replace(
            chosen, built_since=newest if newest and newest.sha256 not in known else None
        )

    def _check_known(self, stack: str) -> None:
        """Raise InputError where no recipe is called STACK.

        Where images of the same family are in the store, the refusal names those: a recipe without
        an image is no help to a user who wants to run one.
        """
        try:
            self.catalog().find(stack)
        except ProblemsError:
            raise
        except InputError as unknown:
            family = re.split(r"[-/][0-9]", stack, maxsplit=1)[0]  # pytorch, of pytorch-24.11
            stored = self.store.stacks()
            of_its_kind = [one for one in stored if re.match(rf"{re.escape(family)}-[0-9]", one)]
            if not of_its_kind:
                raise
            nearest = difflib.get_close_matches(stack, of_its_kind, n=MOST_NAMED, cutoff=0)
            tip = (
                f"hpcstack launch {nearest[0]}; hpcstack images shows all that can be launched here"
            )
            raise InputError(
                f"there is no stack {stack!r}; there are {', '.join(sorted(nearest))}",
                tip,
                page="see-what-a-launch-did",
            ) from unknown


def is_image_file(text: str) -> bool:
    """Whether TEXT is written as an image's file (`./image.sqsh`, `/x/image`), not as a name."""
    return text.endswith(OF_IMAGES) or (
        text.startswith(("/", "./", "../", "~")) and not text.endswith(OF_RECIPES)
    )


def find_newest_image(stack: str, store: Store, platform: str = "") -> Artifact:
    """Return the image of STACK that was built last: for PLATFORM if there is one, else for any.

    InputError where there is none.
    """
    artifact = store.newest_for(stack, platform) or store.newest(stack)
    if artifact:
        return artifact
    built = ", ".join(store.stacks()) or "none"
    raise InputError(
        f"no image of {stack} is in {store.top} (there: {built})",
        f"hpcstack build {stack}",
        page="build-my-own-stack",
    )


def find_image_to_publish(stack: str, key: str, store: Store, platform: str = "") -> Artifact:
    """Return the image of STACK that was built last, or the one whose key begins with KEY.

    InputError where there is none, or several.
    """
    if not key:
        return find_newest_image(stack, store, platform)
    found = [one for one in _list_by_key(key, store) if one.stack == stack]
    if len(found) != 1:
        raise InputError(
            f"--image {key}: {len(found)} images of {stack} have a key that begins with it",
            "hpcstack images",
        )
    return found[0]


def _list_by_key(text: str, store: Store) -> list[Artifact]:
    """Return the images of STORE whose key begins with TEXT."""
    return [one for one in store.images() if one.key.startswith(text)]
