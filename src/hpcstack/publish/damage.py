"""What of what is published is not as it was written: the ledger is held against what users load.
Reads only.

A modulefile that somebody removed, a `.modulerc` that was edited, a wrapper of another release:
`module load` takes what is there, and says nothing. So each file is compared with the inventory
that was written with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hpcstack.core import descriptors, files, sharing
from hpcstack.core.errors import InputError, StoreError
from hpcstack.releases.inventory import NAMES, damaged_inventories, read_inventory, sha256_of
from hpcstack.releases.journal import GENERATION
from hpcstack.releases.layout import CORE, CURRENT, GATE, JOURNAL, MORE, STATE
from hpcstack.releases.modulerc import render_gateway
from hpcstack.releases.records import KEPT_FILES, release_folder
from hpcstack.releases.seal import SEAL, is_only_touched, read_seal, why_changed
from hpcstack.store.store import MAX_RECORD

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.releases.ledger import Entry, Ledger
    from hpcstack.releases.tree import Tree
    from hpcstack.store.store import Store

# file: its text is known. state: a generation of the name's state, written anew. image: its bytes
# must be made again. nothing: nobody knows what was there.
Repair = Literal["file", "state", "image", "nothing"]


@dataclass(frozen=True)
class Damage:
    """What is wrong with SUBJECT, a NAME or a NAME/RELEASE; what to type; how it can be mended.

    Where that is by a file: its PATH and TEXT, None for one that goes.
    """

    subject: str
    what: str
    remedy: str
    repair: Repair
    path: Path | None = None
    text: str | None = None

    def __str__(self) -> str:
        return f"{self.subject}: {self.what}: {self.remedy}"


def names_with_traces(tree: Tree) -> list[str]:
    """Every name of which something is there: a state, be it torn, or modulefiles without one."""
    states = {
        path.name for path in _folders(tree.root / STATE)
    }  # also of a first publish that is under way
    direct = {
        path.name
        for path in _folders(tree.core)
        if path.name != GATE and any(path.glob("[!.]*.lua"))
    }
    apart = {
        path.name
        for path in _folders(tree.root / MORE)
        if any((path / CORE / path.name).glob("[!.]*.lua"))
    }
    return sorted({name for name in states if _generations(tree, name)} | direct | apart)


def find_damage(tree: Tree, store: Store, name: str) -> list[Damage]:
    """All that is wrong with what is published as NAME, but for the bytes of images: those nobody
    has read here.
    """
    try:
        ledger = tree.ledger(name)
    except StoreError as error:
        return [_torn_state(tree, name, error.message)]
    if not ledger.entries:
        return [_lost_state(tree, name)] if _is_lost(tree, name) else []
    out = [*_state_damage(tree, name), *_link_damage(tree, name), *_stray_modulefiles(tree, ledger)]
    for entry in ledger.entries:
        if entry.state != "gone":
            out += _release_damage(tree, store, ledger, entry)
    return out


# -- a name's state


def _generations(tree: Tree, name: str) -> list[int]:
    folder = tree.root / STATE / name
    return sorted(int(path.name) for path in _folders(folder) if GENERATION.fullmatch(path.name))


def _current_generation(tree: Tree, name: str) -> str:
    """The number that NAME's `current` names; empty where that leads anywhere else: it is read,
    never followed.
    """
    said = descriptors.read_link(tree.root / STATE / name / CURRENT) or ""
    return said if GENERATION.fullmatch(said) else ""


def whole_generations(tree: Tree, name: str) -> list[int]:
    """Those whose ledger is as it was written, the newest first."""
    whole = []
    for number in reversed(_generations(tree, name)):
        folder = tree.root / STATE / name / str(number)
        try:
            known = read_inventory(folder, f"{name}#{number}")
            text = files.read_text(folder / "ledger.json", MAX_RECORD)
        except (StoreError, InputError, OSError):
            continue
        if known and sha256_of(text) == known.digests.get("ledger.json"):
            whole.append(number)
    return whole


def _torn_state(tree: Tree, name: str, why: str) -> Damage:
    """The ledger of NAME cannot be read: its inventory may have it, else an earlier generation."""
    folder = tree.root / STATE / name / CURRENT
    number = _current_generation(tree, name)
    try:
        known = read_inventory(folder.with_name(number), f"{name}#{number}") if number else None
    except StoreError:
        known = None
    if known and (text := known.texts.get("ledger.json")):
        path = folder.with_name(number) / "ledger.json"
        return Damage(name, why, f"hpcstack repair {name}", "file", path, text)
    return _earlier_generation(tree, name, why)


def _lost_state(tree: Tree, name: str) -> Damage:
    why = f"{tree.root / STATE / name / CURRENT} is gone, and modulefiles of {name} are there"
    return _earlier_generation(tree, name, why)


def _earlier_generation(tree: Tree, name: str, why: str) -> Damage:
    whole = whole_generations(tree, name)
    said = f"; whole generations: {', '.join(map(str, whole))}" if whole else ""
    remedy = (
        f"hpcstack repair {name} --generation {whole[0]}"
        if whole
        else f"restore {tree.root / STATE / name}"
    )
    return Damage(name, why + said, remedy + ("" if whole else " from a backup"), "nothing")


def _is_lost(tree: Tree, name: str) -> bool:
    """Whether modulefiles of NAME are there without a state.

    A first publish that is under way has neither.
    """
    if (tree.root / STATE / name / JOURNAL).exists():
        return False
    return any(any((home / name).glob("[!.]*")) for home in tree.homes(name).values())


def _state_damage(tree: Tree, name: str) -> list[Damage]:
    """What users' module systems read of the current generation, against what was written there."""
    state = tree.root / STATE / name
    number = _current_generation(tree, name)
    if not number:
        return [
            _earlier_generation(tree, name, f"{state / CURRENT} leads to no generation of its own")
        ]
    folder = state / number
    try:
        known = read_inventory(folder, f"{name}#{number}")
    except StoreError as error:
        return [Damage(name, error.message, f"hpcstack repair {name}", "state")]
    if known is None:
        return []
    mend = f"hpcstack repair {name}"
    out = [
        Damage(
            name, f"{folder / path} is {wrong}", mend, "file", folder / path, known.texts.get(path)
        )
        for path, sha256 in known.digests.items()
        if (wrong := _difference(folder / path, sha256))
    ]
    if damaged := damaged_inventories(folder, f"{name}#{number}"):
        said = " and ".join(str(folder / one) for one in damaged)
        out.append(Damage(name, f"{said} cannot be read", mend, "state"))
    return out


def _link_damage(tree: Tree, name: str) -> list[Damage]:
    """The links by which module systems find the state of NAME, and its gateways."""
    out, mend = [], f"hpcstack repair {name}"
    for suffix, home in tree.homes(name).items():
        link = home / name / f".modulerc{suffix}"
        target = os.path.relpath(
            tree.root / STATE / name / CURRENT / f"modulerc{suffix}", link.parent
        )
        if _link(link) != target:
            out.append(Damage(name, f"{link} is not the link to what versions mean", mend, "state"))
        if home.parent != tree.root:
            path, text = (
                tree.root / home.name / GATE / f"{name}{suffix}",
                render_gateway(name, str(home), suffix),
            )
            if wrong := _difference(path, sha256_of(text)):
                out.append(Damage(name, f"{path} is {wrong}", mend, "file", path, text))
    return out


def _stray_modulefiles(tree: Tree, ledger: Ledger) -> list[Damage]:
    """Modulefiles of the name that no ledger knows: users can load them."""
    if (tree.root / STATE / ledger.name / JOURNAL).exists():
        # a change is under way, or was interrupted: its files are there before its ledger is
        return []
    known = {entry.release for entry in ledger.entries if entry.state not in ("removed", "gone")}
    out = []
    for suffix, home in tree.homes(ledger.name).items():
        for path in sorted((home / ledger.name).glob("[!.]*")):
            release = path.name.removesuffix(suffix) if suffix else path.name
            if release not in known:
                subject = f"{ledger.name}/{release}"
                out.append(
                    Damage(
                        subject,
                        f"{path} is there, and nobody published it",
                        f"rm {path}",
                        "nothing",
                    )
                )
    return out


# -- a release


def _release_damage(tree: Tree, store: Store, ledger: Ledger, entry: Entry) -> list[Damage]:
    """The files of one release, in its folder and in the tree, and what its image's file looks
    like.
    """
    subject = f"{ledger.name}/{entry.release}"
    folder = release_folder(store, ledger.name, entry.release)
    anew = f"hpcstack publish {ledger.name}-{entry.version}, or restore it from a backup"
    if not folder.is_dir():
        return [Damage(subject, f"{folder} is gone, with its wrappers", anew, "nothing")]
    try:
        known = read_inventory(folder, subject)
    except StoreError as error:
        return [Damage(subject, error.message, anew, "nothing")]
    mend = f"hpcstack repair {subject}"
    out = _image_damage(store, ledger, entry)
    if known is None:
        return [*out, *_older_release(tree, ledger, entry, folder, mend)]
    for part, sha256 in known.digests.items():
        if wrong := _difference(folder / part, sha256):
            text = known.texts.get(part)
            how: Repair = "nothing" if text is None else "file"
            out.append(
                Damage(
                    subject,
                    f"{folder / part} is {wrong}",
                    mend if text else anew,
                    how,
                    folder / part,
                    text,
                )
            )
    for name in damaged_inventories(folder, subject):
        whole = next(one for one in NAMES if one != name)
        text = files.read_bytes(folder / whole, MAX_RECORD, published=True).decode()
        out.append(
            Damage(subject, f"{folder / name} cannot be read", mend, "file", folder / name, text)
        )
    for path in _modulefiles(tree, ledger, entry):
        kept = KEPT_FILES[0] if path.suffix == ".lua" else KEPT_FILES[1]
        if wrong := _difference(path, known.digests.get(kept, "")):
            out.append(
                Damage(subject, f"{path} is {wrong}", mend, "file", path, known.texts.get(kept))
            )
    own = {*known.digests, *NAMES, SEAL}
    for path in sorted(_files_below(folder)):
        if str(path.relative_to(folder)) not in own:
            out.append(
                Damage(
                    subject, f"{path} is there, and nobody published it", f"rm {path}", "nothing"
                )
            )
    return out


def _older_release(
    tree: Tree, ledger: Ledger, entry: Entry, folder: Path, mend: str
) -> list[Damage]:
    """One of before inventories were written: its modulefiles are held against the copies in its
    folder.
    """
    subject, out = f"{ledger.name}/{entry.release}", []
    for path in _modulefiles(tree, ledger, entry):
        kept = folder / (KEPT_FILES[0] if path.suffix == ".lua" else KEPT_FILES[1])
        try:
            text = files.read_text(kept, MAX_RECORD)
        except (OSError, InputError):
            continue
        if wrong := _difference(path, sha256_of(text)):
            out.append(Damage(subject, f"{path} is {wrong}", mend, "file", path, text))
    return out


def _modulefiles(tree: Tree, ledger: Ledger, entry: Entry) -> list[Path]:
    """Where the modulefiles of a release lie; nowhere where it was removed."""
    if entry.state in ("removed", "gone"):
        return []
    homes = tree.homes(ledger.name)
    return [home / ledger.name / f"{entry.release}{suffix}" for suffix, home in homes.items()]


def _image_damage(store: Store, ledger: Ledger, entry: Entry) -> list[Damage]:
    """What the image's file shows without being read: that it is another than the one that was read
    last.
    """
    subject, stack = f"{ledger.name}/{entry.release}", f"{ledger.name}-{entry.version}"
    again = f"hpcstack repair {subject} --images"
    try:
        artifact = store.artifact(entry.key)
        if not artifact:
            return [Damage(subject, "its image is gone", again, "image")]
        if artifact.sha256 != entry.sha256:
            said = (
                f"its image is another than was published: {artifact.sha256[:12]}, not "
                f"{entry.sha256[:12]}"
            )
            return [Damage(subject, said, f"hpcstack build {stack}, and publish it", "nothing")]
        seal = read_seal(store, ledger.name, entry.release)
        if is_only_touched(artifact, seal) and not sharing.names_publishers():
            return []  # touched_images names it
        why = why_changed(artifact, seal)
    except StoreError as error:
        return [Damage(subject, error.message, again, "image")]
    return (
        [
            Damage(
                subject,
                f"its image {why}",
                f"hpcstack verify --all reads it, {again} makes it again",
                "image",
            )
        ]
        if why
        else []
    )


def touched_images(tree: Tree, store: Store, name: str) -> list[str]:
    """What to know of images whose mode, owner or name was changed since they were read: nobody
    knows that their bytes are others, nor that they are the same.
    """
    out = []
    with contextlib.suppress(StoreError):
        for entry in tree.ledger(name).entries:
            artifact = store.artifact(entry.key) if entry.state != "gone" else None
            if artifact and is_only_touched(artifact, read_seal(store, name, entry.release)):
                what = (
                    f"{name}/{entry.release}: the mode, owner or name of its image was changed "
                    f"since it was read"
                )
                out.append(f"{what}; hpcstack verify --all reads it")
    return out


# -- files


def _difference(path: Path, sha256: str) -> str:
    """What PATH is, where it is not the file with SHA256: gone, a link, another text; else empty."""
    try:
        text = files.read_bytes(path, MAX_RECORD)
    except (FileNotFoundError, NotADirectoryError):
        return "gone"
    except InputError:
        return "no ordinary file"
    except OSError as error:
        return f"not to be read: {error.strerror}"
    return "" if hashlib.sha256(text).hexdigest() == sha256 else "not what was written there"


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _folders(folder: Path) -> list[Path]:
    try:
        return [
            path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir()
        ]
    except OSError:
        return []


def _files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
