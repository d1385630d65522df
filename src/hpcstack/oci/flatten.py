"""Merge layers into one tree.

This decides which member of which layer is in the image, and under which names.

`Newest` decides in one pass, newest layer first, so that no layer is ever unpacked. It raises
NeedsTwoPasses for what cannot be decided in that order: a name twice in a layer, a hard link whose
file an upper layer hides, a file below a folder that is a link. Then all headers are read once
more, and `plan_layers` applies them oldest first, on a tree in memory. Both give the same image.

If an upper layer has files or whiteouts below a name that is a symbolic link in a lower layer, they
belong where that link leads to. One pass meets the upper layer first, and cannot know that; so such
images are for the plan, too.

In this module, "above" is newer and "below" is older.

Rules: https://github.com/opencontainers/image-spec/blob/main/layer.md (whiteouts, opaque folders).
"""

from __future__ import annotations

import posixpath
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcstack.core.bounds import A_NAME, MAX_DEPTH, MAX_NAMES, MAX_PATH, TooLarge, check_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WHITEOUT, OPAQUE, RESERVED = ".wh.", ".wh..wh..opq", ".wh..wh."
MAX_LINKS = 40  # symbolic links that one path may go through, as in the kernel
# Steps of looking up names that an image may take, and those for each of its members: links can
# be built so that looking up a few names takes for ever.
STEPS, STEPS_AN_ENTRY = 1 << 20, 64


class ClimbsOut(ValueError):
    """A name leads out of the image, or a link leads nowhere."""


class NeedsTwoPasses(Exception):
    """One pass is not enough for these layers."""


@dataclass(frozen=True)
class TreeEntry:
    """What merging needs to know of one member: its path below the root, and its kind."""

    path: str  # "" is the root
    kind: str  # "dir", "file", "link" (symbolic), "hard", "device", "fifo"
    target: str = ""  # of a symbolic link as it is written, of a hard link as a path below the root


def clean_name(name: str, what: str = "a file") -> str:
    """Return NAME as a path below the root. Raise ClimbsOut if it leads above it.

    WHAT is what the name is of, for the message.
    """
    # The fast way for nearly all names; an image has hundreds of thousands.
    if (
        name.isascii()
        and "//" not in name
        and name[:1] != "."
        and "/." not in name
        and name[:1] != "/"
        and "\0" not in name
    ):
        return name.rstrip("/")

    parts: list[str] = []
    for part in name.split("/"):
        if part == "..":
            raise ClimbsOut(f"names {what} outside the image: {name}")
        if part not in ("", "."):
            parts.append(part)
    if "\0" in name:
        raise ClimbsOut(f"names {what} with a null character: {name!r}")
    return "/".join(parts)


KINDS = {
    tarfile.DIRTYPE: "dir",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "hard",
    tarfile.FIFOTYPE: "fifo",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
}


def make_entry(member: tarfile.TarInfo) -> TreeEntry:
    """Return MEMBER as merging sees it.

    Raise ClimbsOut for a name outside the image, TooLarge for one that is too long.
    """
    kind = KINDS.get(member.type, "file")
    path = clean_name(member.name)
    check_path(path)
    if not path and kind != "dir":
        raise ClimbsOut(f"has a {kind} in the place of its root")
    if kind == "hard":
        target = clean_name(member.linkname, f"{path}, a link to a file")
        check_path(target, "a link")
        return TreeEntry(path, kind, target)
    if kind != "link":
        return TreeEntry(path, kind)
    if kind == "link" and not member.linkname:  # symlink(2) makes none
        raise ClimbsOut(f"has {path} as a link to nothing")
    if len(member.linkname.encode("utf-8", "surrogateescape")) >= MAX_PATH:
        raise TooLarge(f"has a link of {MAX_PATH} bytes or more: {path}")
    return TreeEntry(path, kind, member.linkname)


def parse_whiteout(path: str) -> str | None:
    """Return the path that the whiteout PATH removes, or None if PATH is an ordinary member.

    For an opaque whiteout, return its folder and a slash. For a whiteout that removes nothing, such
    as those that AUFS reserves for itself, return the empty string.
    """
    folder, _, name = path.rpartition("/")
    if not name.startswith(WHITEOUT):
        return None
    if name == OPAQUE:
        return f"{folder}/"
    if name == WHITEOUT or name.startswith(RESERVED):
        return ""
    return posixpath.join(folder, name[len(WHITEOUT) :])


class Newest:
    """Decide in one pass which members are in the image.

    Layers come newest first: call `layer` at the beginning of each, then `takes` for each of its
    members, in their order. At the end, `links` and `implied` are what has to be added.
    """

    def __init__(self) -> None:
        self.seen: dict[str, tuple[str, int]] = {}  # path: (kind, or "implied"; number of layer)
        self.gone: set[str] = set()  # paths that whiteouts of the layers above remove
        self.opaque: set[str] = set()  # folders whose content from below they remove
        self.links: list[tuple[str, str]] = []  # (name, the file that it is another name of)
        self.number = 0  # of the layer, counted from the newest

        # Folder: the lowest layer so far that has something in it, or a whiteout.
        self._used: dict[str, int] = {}
        # Folder: the layer that has it as a folder. What this layer has in it cannot go through a
        # link of a layer below.
        self._made: dict[str, int] = {}
        # Folder: the layer that has it as a folder, below layers that have something in it. What
        # they have in it is there, whatever the layers further below have under this name.
        self._cleared: dict[str, int] = {}

        self._waiting: list[str] = []  # what this layer removes, which holds for those below it
        self._hidden: dict[str, bool] = {}  # folder: whether layers above hide its content here
        self._covered: set[str] = set()  # what in this layer is no folder, and is hidden from above
        self._names = 0  # bytes of the names that are kept in memory

    def implied(self) -> list[str]:
        """Return the folders in which something lies though no layer names them, and the root."""
        paths = [path for path, (kind, _) in self.seen.items() if kind == "implied"]
        if "" not in self.seen:
            paths.append("")
        return sorted(paths)

    def layer(self) -> None:
        """Begin the next layer below. What the layer above removed is gone from here on."""
        for path in self._waiting:
            if path.endswith("/"):
                self.opaque.add(path[:-1])
            else:
                self.gone.add(path)
        self._waiting = []
        self._hidden = {"": "" in self.opaque}
        self._covered = set()
        self.number += 1

    def takes(self, entry: TreeEntry) -> bool:
        """Return whether the member ENTRY is in the image, to be written under its own name.

        Hard links are not: they are written at the end, from `links`. Devices never are in the
        image. Raise NeedsTwoPasses if one pass cannot decide, TooLarge for too many names.
        """
        path = entry.path
        folder = path.rpartition("/")[0]
        removed = parse_whiteout(path)
        self._count_name(path)
        self._note_use(folder)
        if removed is not None:
            if removed:
                self._waiting.append(removed)
            return False

        self._note_kind(path, entry.kind)
        if path and (self._is_hidden(folder) or path in self.gone):
            return self._cover(entry)
        before = self.seen.get(path)
        if before:
            if before[1] == self.number and before[0] != "implied":
                raise NeedsTwoPasses(f"{path} is twice in one layer")
            if before[0] == "implied" and entry.kind != "dir":
                raise NeedsTwoPasses(f"{path} is a folder above and something else below")
            if before[0] != "implied":
                return self._cover(entry)

        kind = entry.kind
        if kind == "hard":
            kind = self._add_link(entry)
        self.seen[path] = (kind, self.number)
        self._imply_parents(folder)
        return kind not in ("hard", "device")

    def _count_name(self, path: str) -> None:
        """Count PATH as kept in memory. Raise TooLarge if that becomes too much."""
        self._names += len(path) + A_NAME
        if self._names > MAX_NAMES:
            raise TooLarge(f"makes it more than {MAX_NAMES >> 20} MiB of names")

    def _cover(self, entry: TreeEntry) -> bool:
        """Note that layers above hide ENTRY, and return False.

        If it is not a folder, it still replaced a folder of the layers below, and what lay in that.
        """
        if entry.kind != "dir":
            self._covered.add(entry.path)
            self._waiting.append(entry.path)
        return False

    def _note_use(self, folder: str) -> None:
        """Note that this layer has something in FOLDER, and so in its parent folders.

        Stop at a folder that this layer itself has: that cannot be a link of a layer below.
        """
        while (
            folder
            and self._made.get(folder) != self.number
            and self._used.get(folder) != self.number
        ):
            if folder in self._covered:
                raise NeedsTwoPasses(f"{folder} is not a folder, but something lies in it")
            if folder not in self._used:
                self._count_name(folder)
            self._used[folder] = self.number
            folder = folder.rpartition("/")[0]

    def _note_kind(self, path: str, kind: str) -> None:
        """Note that PATH is a folder in this layer, or something else.

        If it is not a folder, it may be a link. Raise NeedsTwoPasses if layers above have something
        in it, which would then belong where the link leads to.
        """
        if kind == "dir":
            self._made[path] = self.number
            if self._used.get(path, self.number) < self.number:
                del self._used[path]
                self._cleared[path] = self.number
        elif self._made.get(path) == self.number:
            raise NeedsTwoPasses(f"{path} is twice in one layer")
        elif path in self._used or self._cleared.get(path) == self.number:
            raise NeedsTwoPasses(f"{path} is not a folder, but layers above have something in it")

    def _is_hidden(self, folder: str) -> bool:
        """Return whether layers above hide what lies in FOLDER in this layer."""
        known = self._hidden.get(folder)
        if known is not None:
            return known

        kind, number = self.seen.get(folder, ("dir", 0))
        if kind not in ("dir", "implied") and number == self.number:
            raise NeedsTwoPasses(f"{folder} is not a folder, but something lies in it")
        hidden = (
            folder in self.gone
            or folder in self.opaque
            or kind not in ("dir", "implied")
            or self._is_hidden(folder.rpartition("/")[0])
        )
        self._hidden[folder] = hidden
        return hidden

    def _imply_parents(self, folder: str) -> None:
        """Note that FOLDER and its parents must be in the image, even if no layer names them."""
        while folder and folder not in self.seen:
            self._count_name(folder)
            self.seen[folder] = ("implied", self.number)
            folder = folder.rpartition("/")[0]
        if folder and self.seen[folder] == ("hard", self.number):
            raise NeedsTwoPasses(f"{folder} is not a folder, but something lies in it")

    def _add_link(self, entry: TreeEntry) -> str:
        """Add a hard link to `links`. Return its kind: "device" if it is a name of a device.

        Raise NeedsTwoPasses if its file is not a file of this layer that is in the image.
        """
        kind, number = self.seen.get(entry.target, ("", 0))
        if number != self.number or kind in ("dir", "implied"):
            raise NeedsTwoPasses(
                f"{entry.path} is a link to {entry.target}, which is not of its own layer"
            )
        if kind == "device":
            return kind  # another name of a device, which is not in the image
        self.links.append((entry.path, entry.target))
        return "hard"


@dataclass
class Node:
    """One name in the tree of `plan_layers`."""

    kind: str
    # (layer from the bottom, number of the member in it); None for a folder that no layer names.
    source: tuple[int, int] | None
    target: str = ""
    children: dict[str, Node] = field(default_factory=dict)


@dataclass
class Root(Node):
    """The root of the tree. `left` is the number of steps that looking up names may still take."""

    left: int = 0


def plan_layers(
    layers: Sequence[Iterable[TreeEntry]],
) -> tuple[dict[tuple[int, int], list[str]], list[str]]:
    """Apply LAYERS, oldest first, and return which members are in the image.

    The first value is {(layer from the bottom, number of the member in it): its names in the
    image}: more than one where there are hard links. The second are the folders that no layer
    names, but in which something lies. Raise ClimbsOut or TooLarge for names that lead out of the
    image, or through too many links.
    """
    whole = [list(layer) for layer in layers]
    root = Root("dir", None, left=STEPS + STEPS_AN_ENTRY * sum(map(len, whole)))
    for number, entries in enumerate(whole):
        # A layer's whiteouts concern the layers below it, wherever they are in its tar. What they
        # remove may have got another name in this layer: `ln a b; rm a`.
        whiteouts = [parse_whiteout(entry.path) for entry in entries]
        linked: dict[str, Node | None] = {}
        if any(whiteouts):
            targets = {entry.target for entry in entries if entry.kind == "hard"}
            linked = {target: _find(root, target) for target in sorted(targets)}
        for removed in whiteouts:
            if removed:
                _remove(root, removed)
        for place, entry in enumerate(entries):
            if whiteouts[place] is None:
                _apply(root, entry, (number, place), linked)

    names: dict[tuple[int, int], list[str]] = {}
    implied: list[str] = []
    _walk(root, "", names, implied)
    return names, implied


def _remove(root: Root, path: str) -> None:
    """Remove PATH from the tree; for a PATH that ends in a slash, only what lies in it."""
    parent, _, name = path.rpartition("/")
    folder = _folder(root, parent, make=False)
    if folder is None:
        return
    if name:
        folder.children.pop(name, None)
    else:
        folder.children.clear()


def _apply(
    root: Root, entry: TreeEntry, source: tuple[int, int], linked: Mapping[str, Node | None]
) -> None:
    """Put ENTRY, the member SOURCE, into the tree, in the place of what was there.

    LINKED is what was at the target of a hard link before its layer's whiteouts.
    """
    if not entry.path:
        root.source = source
        return
    folder, _, name = entry.path.rpartition("/")
    parent = _folder(root, folder)
    assert parent
    old = parent.children.get(name)
    if entry.kind == "hard":
        found = _find(root, entry.target) or linked.get(entry.target)
        if found is None or found.kind == "dir":
            raise ClimbsOut(f"has {entry.path} as a link to {entry.target}, which does not exist")
        parent.children[name] = found
    elif entry.kind == "dir" and old and old.kind == "dir":
        old.source = source  # a newer layer's mode and owner; what lies in the folder stays
    else:
        parent.children[name] = Node(entry.kind, source, entry.target)


def _find(root: Root, path: str) -> Node | None:
    """Return what is at PATH, or None. Links among its folders are followed, its last part not."""
    folder, _, name = path.rpartition("/")
    node: Node | None = root
    for part in filter(None, folder.split("/")):
        node = node.children.get(part) if node else None
        if node and node.kind == "link":
            node = _folder(root, folder)
            break
    return node.children.get(name) if node else None


def _folder(root: Root, path: str, *, make: bool = True) -> Node | None:
    """Return the folder at PATH, and follow links on the way, inside the image.

    With MAKE, missing folders are created, also in the place of files; else return None for them.
    Raise ClimbsOut for links that lead out of the image or in a circle, TooLarge for a path that
    becomes too deep, and for an image whose links take too many steps.
    """
    node: Node = root
    trail: list[Node] = [root]  # the folders from the root to here, for `..`
    rest = [part for part in reversed(path.split("/")) if part]  # what is still to go, last first
    links = 0
    while rest:
        part = rest.pop()
        root.left -= 1
        if root.left < 0:
            raise TooLarge("is a maze of links")

        if part == "..":
            if len(trail) == 1:
                raise ClimbsOut(f"has a file below a link that leads out of the image: {path}")
            trail.pop()
            node = trail[-1]
            continue

        found = node.children.get(part)
        if found is not None and found.kind == "link":
            links += 1
            if links > MAX_LINKS:
                raise ClimbsOut(f"has a file below a link to itself: {path}")
            parts = [step for step in found.target.split("/") if step not in ("", ".")]
            if found.target.startswith("/"):
                node, trail = root, [root]
            rest += reversed(parts)
            root.left -= len(parts)
            continue

        if found is None or found.kind != "dir":
            if not make:
                return None
            found = node.children[part] = Node("dir", None)
        node = found
        trail.append(node)
        if len(trail) > MAX_DEPTH:
            raise TooLarge(
                f"has a file deeper than {MAX_DEPTH} folders behind its links: {path[:80]}"
            )
    return node


def _walk(
    node: Node, path: str, names: dict[tuple[int, int], list[str]], implied: list[str]
) -> None:
    """Collect into NAMES and IMPLIED what lies at PATH in the tree, and below."""
    if node.source is None:
        implied.append(path)
    elif node.kind != "device":
        names.setdefault(node.source, []).append(path)
    for name in sorted(node.children):
        _walk(node.children[name], posixpath.join(path, name), names, implied)
