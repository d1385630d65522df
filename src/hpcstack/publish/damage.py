"""Finds what is published and is not as it was written. Reads only.

A modulefile that somebody removed, a `.modulerc` that was edited, a wrapper of another release:
`module load` takes what is there, and says nothing. So each file is compared with the inventory
that was written together with it (releases/inventory.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hpcstack.core import descriptors, files
from hpcstack.core.errors import InputError, StoreError
from hpcstack.releases.inventory import NAMES, digest_text, find_damaged_inventories, read_inventory
from hpcstack.releases.journal import GENERATION
from hpcstack.releases.layout import CORE, CURRENT, GATE, JOURNAL, MORE, STATE
from hpcstack.releases.modulerc import render_gateway
from hpcstack.releases.records import KEPT_FILES, name_release_folder
from hpcstack.releases.seal import SEAL, explain_change, is_only_touched, read_seal
from hpcstack.store.store import MAX_RECORD

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.releases.ledger import Entry, Ledger
    from hpcstack.releases.tree import Tree
    from hpcstack.store.store import Store

# How a damage can be mended:
#   file     put the file back, if its text is known
#   state    write the state of the name anew, as a new generation
#   image    build the image again
#   nothing  not by hpcstack: nobody knows what was there
Repair = Literal["file", "state", "image", "nothing"]


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong with SUBJECT, a NAME or a NAME/RELEASE.

    WHAT says what is wrong, REMEDY what to type, REPAIR how it can be mended. Where REPAIR is
    `file`, PATH is the file to put back, and TEXT what belongs in it; without TEXT the damage is
    reported, but cannot be mended.
    """

    subject: str
    what: str
    remedy: str
    repair: Repair
    path: Path | None = None
    text: str | None = None

    def __str__(self) -> str:
        return f"{self.subject}: {self.what}: {self.remedy}"


def can_be_mended(damage: Damage) -> bool:
    """Whether `repair.repair_names` puts DAMAGE right."""
    return damage.repair == "state" or (damage.repair == "file" and damage.text is not None)


def list_names_with_traces(tree: Tree) -> list[str]:
    """Return every name of which the tree holds something.

    That is a state, even a damaged one, or modulefiles without a state.
    """
    # A first publish that is under way has a state folder without generations: it does not count.
    states = {
        path.name for path in _list_folders(tree.root / STATE) if _list_generations(tree, path.name)
    }
    direct = {
        path.name
        for path in _list_folders(tree.core)
        if path.name != GATE and any(path.glob("[!.]*.lua"))
    }
    behind_gateways = {
        path.name
        for path in _list_folders(tree.root / MORE)
        if any((path / CORE / path.name).glob("[!.]*.lua"))
    }
    return sorted(states | direct | behind_gateways)


def find_damage(tree: Tree, store: Store, name: str) -> list[Damage]:
    """Return all that is wrong with what is published as NAME.

    The bytes of images are not read here: of an image only its record and its file's size, inode
    and times are looked at.
    """
    try:
        ledger = tree.ledger(name)
    except StoreError as error:
        return [_describe_torn_state(tree, name, error.message)]
    if not ledger.entries:
        return [_describe_lost_state(tree, name)] if _is_lost(tree, name) else []

    out = [
        *_find_state_damage(tree, name),
        *_find_link_damage(tree, name),
        *_find_stray_modulefiles(tree, ledger),
    ]
    for entry in ledger.entries:
        if entry.state != "gone":
            out += _find_release_damage(tree, store, ledger, entry)
    return out


# -- a name's state


def _list_generations(tree: Tree, name: str) -> list[int]:
    """Return the generations of NAME that are there, the oldest first."""
    folder = tree.root / STATE / name
    return sorted(
        int(path.name) for path in _list_folders(folder) if GENERATION.fullmatch(path.name)
    )


def _read_current_generation(tree: Tree, name: str) -> str:
    """Return the number that NAME's link `current` leads to; empty where it leads elsewhere.

    The link is read and never followed: whoever may write there could point it anywhere.
    """
    target = descriptors.read_link(tree.root / STATE / name / CURRENT) or ""
    return target if GENERATION.fullmatch(target) else ""


def find_whole_generations(tree: Tree, name: str) -> list[int]:
    """Return the generations whose ledger is as it was written, the newest first."""
    whole = []
    for number in reversed(_list_generations(tree, name)):
        folder = tree.root / STATE / name / str(number)
        try:
            known = read_inventory(folder, f"{name}#{number}", tree.sharing)
            text = files.read_text(folder / "ledger.json", MAX_RECORD)
        except (StoreError, InputError, OSError):
            continue
        if known and digest_text(text) == known.digests.get("ledger.json"):
            whole.append(number)
    return whole


def _describe_torn_state(tree: Tree, name: str, why: str) -> Damage:
    """Return the damage of a ledger that cannot be read.

    The current generation's inventory may hold its text. Else only an earlier generation is left.
    """
    folder = tree.root / STATE / name / CURRENT
    number = _read_current_generation(tree, name)
    try:
        known = (
            read_inventory(folder.with_name(number), f"{name}#{number}", tree.sharing)
            if number
            else None
        )
    except StoreError:
        known = None

    text = known.texts.get("ledger.json") if known else None
    if text:
        path = folder.with_name(number) / "ledger.json"
        return Damage(name, why, f"hpcstack repair {name}", "file", path, text)
    return _offer_earlier_generations(tree, name, why)


def _describe_lost_state(tree: Tree, name: str) -> Damage:
    """Return the damage of a name whose modulefiles are there and whose state is not."""
    why = f"{tree.root / STATE / name / CURRENT} is gone, and modulefiles of {name} are there"
    return _offer_earlier_generations(tree, name, why)


def _offer_earlier_generations(tree: Tree, name: str, why: str) -> Damage:
    """Return the damage of a ledger that is lost, with the earlier generations that are whole.

    Which of them is to count is for somebody to decide, so it is not mended unasked.
    """
    whole = find_whole_generations(tree, name)
    if not whole:
        remedy = f"restore {tree.root / STATE / name} from a backup"
        return Damage(name, why, remedy, "nothing")
    known = f"; whole generations: {', '.join(map(str, whole))}"
    remedy = f"hpcstack repair {name} --generation {whole[0]}"
    return Damage(name, why + known, remedy, "nothing")


def _is_lost(tree: Tree, name: str) -> bool:
    """Whether modulefiles of NAME are there without a state.

    A first publish that is under way looks the same but for its journal.
    """
    if (tree.root / STATE / name / JOURNAL).exists():
        return False
    return any(any((home / name).glob("[!.]*")) for home in tree.homes(name).values())


def _find_state_damage(tree: Tree, name: str) -> list[Damage]:
    """Return what is wrong with the files of the current generation, which module systems read."""
    state = tree.root / STATE / name
    number = _read_current_generation(tree, name)
    if not number:
        why = f"{state / CURRENT} does not lead to one of its own generations"
        return [_offer_earlier_generations(tree, name, why)]

    folder = state / number
    mend = f"hpcstack repair {name}"
    try:
        known = read_inventory(folder, f"{name}#{number}", tree.sharing)
    except StoreError as error:
        return [Damage(name, error.message, mend, "state")]
    if known is None:
        return []  # written by an hpcstack that wrote no inventories

    out = []
    for part, sha256 in known.digests.items():
        path = folder / part
        wrong = _describe_difference(path, sha256)
        if wrong:
            text = known.texts.get(part)
            out.append(Damage(name, f"{path} is {wrong}", mend, "file", path, text))

    damaged = find_damaged_inventories(folder, f"{name}#{number}", tree.sharing)
    if damaged:
        paths = " and ".join(str(folder / one) for one in damaged)
        out.append(Damage(name, f"{paths} cannot be read", mend, "state"))
    return out


def _find_link_damage(tree: Tree, name: str) -> list[Damage]:
    """Return what is wrong with the links that lead module systems to NAME's state, and with its
    gateways.
    """
    out = []
    mend = f"hpcstack repair {name}"
    for suffix, home in tree.homes(name).items():
        link = home / name / f".modulerc{suffix}"
        modulerc = tree.root / STATE / name / CURRENT / f"modulerc{suffix}"
        if _read_link(link) != os.path.relpath(modulerc, link.parent):
            out.append(Damage(name, f"{link} is not the link to what versions mean", mend, "state"))

        is_behind_gateway = home.parent != tree.root
        if is_behind_gateway:
            path = tree.root / home.name / GATE / f"{name}{suffix}"
            text = render_gateway(name, str(home), suffix)
            wrong = _describe_difference(path, digest_text(text))
            if wrong:
                out.append(Damage(name, f"{path} is {wrong}", mend, "file", path, text))
    return out


def _find_stray_modulefiles(tree: Tree, ledger: Ledger) -> list[Damage]:
    """Return modulefiles of the name that its ledger does not know: users can load them."""
    if (tree.root / STATE / ledger.name / JOURNAL).exists():
        # A change is under way, or was interrupted: its files are there before its ledger is.
        return []

    known = {entry.release for entry in ledger.entries if entry.state not in ("removed", "gone")}
    out = []
    for suffix, home in tree.homes(ledger.name).items():
        for path in sorted((home / ledger.name).glob("[!.]*")):
            release = path.name.removesuffix(suffix) if suffix else path.name
            if release not in known:
                out.append(_make_stray(f"{ledger.name}/{release}", path))
    return out


def _make_stray(subject: str, path: Path) -> Damage:
    return Damage(subject, f"{path} is there, and nobody published it", f"rm {path}", "nothing")


# -- a release


def _find_release_damage(tree: Tree, store: Store, ledger: Ledger, entry: Entry) -> list[Damage]:
    """Return what is wrong with one release: its files in its folder and in the tree, its image."""
    subject = f"{ledger.name}/{entry.release}"
    folder = name_release_folder(store, ledger.name, entry.release)
    anew = f"hpcstack publish {ledger.name}-{entry.version}, or restore it from a backup"
    if not folder.is_dir():
        return [Damage(subject, f"{folder} is gone, with its wrappers", anew, "nothing")]
    try:
        known = read_inventory(folder, subject, store.sharing)
    except StoreError as error:
        return [Damage(subject, error.message, anew, "nothing")]

    mend = f"hpcstack repair {subject}"
    out = _find_image_damage(store, ledger, entry)
    if known is None:
        return [*out, *_find_damage_without_inventory(tree, ledger, entry, folder, mend)]

    for part, sha256 in known.digests.items():
        path = folder / part
        wrong = _describe_difference(path, sha256)
        if wrong:
            # The text of a long file is not kept: such a file comes back by publishing anew only.
            text = known.texts.get(part)
            how: Repair = "nothing" if text is None else "file"
            remedy = mend if text else anew
            out.append(Damage(subject, f"{path} is {wrong}", remedy, how, path, text))

    for name in find_damaged_inventories(folder, subject, store.sharing):
        whole = next(one for one in NAMES if one != name)
        copy = files.read_bytes(folder / whole, MAX_RECORD, publishers=store.sharing).decode()
        path = folder / name
        out.append(Damage(subject, f"{path} cannot be read", mend, "file", path, copy))

    for path in _list_modulefiles(tree, ledger, entry):
        kept = _name_kept_copy(path)
        wrong = _describe_difference(path, known.digests.get(kept, ""))
        if wrong:
            text = known.texts.get(kept)
            out.append(Damage(subject, f"{path} is {wrong}", mend, "file", path, text))

    own = {*known.digests, *NAMES, SEAL}
    for path in sorted(_list_files_below(folder)):
        if str(path.relative_to(folder)) not in own:
            out.append(_make_stray(subject, path))
    return out


def _find_damage_without_inventory(
    tree: Tree, ledger: Ledger, entry: Entry, folder: Path, mend: str
) -> list[Damage]:
    """Return what is wrong with the modulefiles of a release that has no inventory.

    Older versions of hpcstack wrote none. The copies in the release's own folder are all that there
    is to compare with.
    """
    subject = f"{ledger.name}/{entry.release}"
    out = []
    for path in _list_modulefiles(tree, ledger, entry):
        try:
            copy = folder / _name_kept_copy(path)
            text = files.read_text(copy, MAX_RECORD, publishers=tree.sharing)
        except (OSError, InputError):
            continue
        wrong = _describe_difference(path, digest_text(text))
        if wrong:
            out.append(Damage(subject, f"{path} is {wrong}", mend, "file", path, text))
    return out


def _list_modulefiles(tree: Tree, ledger: Ledger, entry: Entry) -> list[Path]:
    """Return where the modulefiles of a release lie; empty where the release was removed."""
    if entry.state in ("removed", "gone"):
        return []
    homes = tree.homes(ledger.name)
    return [home / ledger.name / f"{entry.release}{suffix}" for suffix, home in homes.items()]


def _name_kept_copy(modulefile: Path) -> str:
    """Return the name of the copy of MODULEFILE in its release's folder."""
    lua, tcl = KEPT_FILES
    return lua if modulefile.suffix == ".lua" else tcl


def _find_image_damage(store: Store, ledger: Ledger, entry: Entry) -> list[Damage]:
    """Return what is wrong with the image of a release, as far as its file shows it unread."""
    subject = f"{ledger.name}/{entry.release}"
    again = f"hpcstack repair {subject} --images"
    try:
        artifact = store.artifact(entry.key)
        if not artifact:
            return [Damage(subject, "its image is gone", again, "image")]
        if artifact.sha256 != entry.sha256:
            what = (
                f"its image is not the one that was published: {artifact.sha256[:12]}, not "
                f"{entry.sha256[:12]}"
            )
            remedy = f"hpcstack build {ledger.name}-{entry.version}, and publish it"
            return [Damage(subject, what, remedy, "nothing")]

        seal = read_seal(store, ledger.name, entry.release)
        if is_only_touched(artifact, seal) and not store.sharing.names_publishers:
            return []  # no damage, but a note: `find_touched_images` has it
        why = explain_change(artifact, seal, store.sharing)
    except StoreError as error:
        return [Damage(subject, error.message, again, "image")]

    if not why:
        return []
    remedy = f"hpcstack verify --all reads it; {again} builds it again"
    return [Damage(subject, f"its image {why}", remedy, "image")]


def find_touched_images(tree: Tree, store: Store, name: str) -> list[str]:
    """Return a note for each image whose mode, owner or name changed since it was last read.

    Whether its bytes are still the same is not known until it is read again.
    """
    out = []
    with contextlib.suppress(StoreError):
        for entry in tree.ledger(name).entries:
            artifact = store.artifact(entry.key) if entry.state != "gone" else None
            if artifact and is_only_touched(artifact, read_seal(store, name, entry.release)):
                out.append(
                    f"{name}/{entry.release}: the mode, owner or name of its image was changed "
                    f"since it was read; hpcstack verify --all reads it"
                )
    return out


# -- files


def _describe_difference(path: Path, sha256: str) -> str:
    """Return what PATH is instead of the file with SHA256; empty where it is that file."""
    try:
        text = files.read_bytes(path, MAX_RECORD)
    except (FileNotFoundError, NotADirectoryError):
        return "gone"
    except InputError:
        return "no ordinary file"
    except OSError as error:
        return f"not to be read: {error.strerror}"
    if hashlib.sha256(text).hexdigest() != sha256:
        return "not what was written there"
    return ""


def _read_link(path: Path) -> str:
    """Return where the link PATH leads; empty where it is no link, or not there."""
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _list_folders(folder: Path) -> list[Path]:
    """Return the folders in FOLDER but for hidden ones; empty where it cannot be read."""
    try:
        return [
            path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir()
        ]
    except OSError:
        return []


def _list_files_below(folder: Path) -> list[Path]:
    """Return all below FOLDER that is not a folder; a link to a folder is not one."""
    return [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
