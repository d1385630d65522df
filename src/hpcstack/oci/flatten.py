"""How layers become one tree: which member of which layer is in the image, and under which names.

`Newest` decides in one pass, newest layer first, so that no layer is ever unpacked. What it cannot
decide so (a name twice in a layer, a link whose file an upper layer hides, a file below a folder
that is a link) makes it raise NeedsTwoPasses; then all headers are read once more and `plan_layers`
applies them oldest first, on a tree in memory. Both give the same image. What an upper layer says
of a name below a link concerns the place that the link leads to: its files, and what it removes. So
a link in a lower layer, below which an upper one said anything, is for the plan, too.

Rules: https://github.com/opencontainers/image-spec/blob/main/layer.md (whiteouts, opaque folders).
"""

from __future__ import annotations

import posixpath
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcstack.core.bounds import A_NAME, MAX_DEPTH, MAX_NAMES, MAX_PATH, TooLarge, check_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WHITEOUT, OPAQUE, RESERVED = ".wh.", ".wh..wh..opq", ".wh..wh."
MAX_LINKS = 40
STEPS, STEPS_AN_ENTRY = 1 << 20, 64  # of looking names up, before an image is taken for a maze


class ClimbsOut(ValueError):
    """A name leads out of the image."""


class NeedsTwoPasses(Exception):
    """One pass is not enough for these layers."""


@dataclass(frozen=True)
class TreeEntry:
    """What merging needs to know of one member: its path below the root ('' is the root), and what
    it is.
    """

    path: str
    kind: str  # "dir", "file", "link" (symbolic), "hard", "device", "fifo"
    target: str = ""


def clean_name(name: str, what: str = "a file") -> str:
    """NAME as a path below the root; ClimbsOut if it leads above it."""
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


KINDS = {tarfile.DIRTYPE: "dir", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "hard", tarfile.FIFOTYPE: "fifo",
         tarfile.CHRTYPE: "device", tarfile.BLKTYPE: "device"}  # fmt: skip


def entry_of(member: tarfile.TarInfo) -> TreeEntry:
    """MEMBER as merging sees it."""
    kind = KINDS.get(member.type, "file")
    path = clean_name(member.name)
    check_path(path)
    if not path and kind != "dir":
        raise ClimbsOut(f"has a {kind} in the place of its root")
    if kind == "hard":
        target = clean_name(member.linkname, f"{path}, a link to a file")
        check_path(target, "a link")
        return TreeEntry(path, kind, target)
    if kind == "link" and len(member.linkname.encode("utf-8", "surrogateescape")) >= MAX_PATH:
        raise TooLarge(f"has a link of {MAX_PATH} bytes or more: {path}")
    return TreeEntry(path, kind, member.linkname if kind == "link" else "")


def parse_whiteout(path: str) -> str | None:
    """The path that a whiteout removes; for an opaque one its folder and a slash; None for an
    ordinary member.
    """
    folder, _, name = path.rpartition("/")
    if not name.startswith(WHITEOUT):
        return None
    if name == OPAQUE:
        return f"{folder}/"
    return (
        ""
        if name == WHITEOUT or name.startswith(RESERVED)
        else posixpath.join(folder, name[len(WHITEOUT) :])
    )


class Newest:
    """Decisions in one pass: layers newest first, each begun by `layer`, its members in their order
    by `takes`.
    """

    def __init__(self) -> None:
        self.seen: dict[
            str, tuple[str, int]
        ] = {}  # path: (kind, number of its layer); "implied" for a parent
        self.gone: set[str] = set()
        self.opaque: set[str] = set()
        self.links: list[tuple[str, str]] = []  # (name, the file that it is another name of)
        self.number = 0
        self._meant: dict[
            str, int
        ] = {}  # folder: the lowest layer so far that says something of what lies in it
        self._made: dict[str, int] = {}  # folder: the layer that makes it
        self._cleared: dict[
            str, int
        ] = {}  # folder: the layer in which it is one, whatever the upper layers say of it
        self._waiting: list[str] = []
        self._hidden: dict[str, bool] = {}
        self._covered: set[str] = (
            set()
        )  # what this layer has that is not a folder, and a layer above hides
        self._names = 0  # bytes of what is held

    def implied(self) -> list[str]:
        """The root and folders that no layer names, but in which something lies."""
        named = [path for path, (kind, _) in self.seen.items() if kind == "implied"]
        return sorted([*named, *([] if "" in self.seen else [""])])

    def layer(self) -> None:
        """The next layer below begins: what the one above removed is gone for it."""
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
        """Whether this member is in the image under its own name; hard links come at the end, from
        `links`.
        """
        path = entry.path
        folder = path.rpartition("/")[0]
        removed = parse_whiteout(path)
        self._hold(path)
        self._means(folder)
        if removed is not None:
            self._waiting += [removed] if removed else []
            return False
        self._is(path, entry.kind)
        if path and (self._hides(folder) or path in self.gone):
            return self._covers(entry)
        before = self.seen.get(path)
        if before:
            if before[1] == self.number and before[0] != "implied":
                raise NeedsTwoPasses(f"{path} is twice in one layer")
            if before[0] == "implied" and entry.kind != "dir":
                raise NeedsTwoPasses(f"{path} is a folder above and something else below")
            if before[0] != "implied":
                return self._covers(entry)
        kind = self._link(entry) if entry.kind == "hard" else entry.kind
        self.seen[path] = (kind, self.number)
        self._parents(folder)
        return kind not in ("hard", "device")

    def _hold(self, path: str) -> None:
        """PATH is held in memory from now on."""
        self._names += len(path) + A_NAME
        if self._names > MAX_NAMES:
            raise TooLarge(f"makes it more than {MAX_NAMES >> 20} MiB of names")

    def _covers(self, entry: TreeEntry) -> bool:
        """A layer above has this name: what is not a folder here still replaced a folder of the
        layers below.
        """
        if entry.kind != "dir":
            self._covered.add(entry.path)
            self._waiting.append(entry.path)
        return False

    def _means(self, folder: str) -> None:
        """This layer says something of what lies in FOLDER; a folder that it made itself is not a
        link below it.
        """
        while (
            folder
            and self._made.get(folder) != self.number
            and self._meant.get(folder) != self.number
        ):
            if folder in self._covered:
                raise NeedsTwoPasses(f"{folder} is not a folder, but something lies in it")
            if folder not in self._meant:
                self._hold(folder)
            self._meant[folder] = self.number
            folder = folder.rpartition("/")[0]

    def _is(self, path: str, kind: str) -> None:
        """PATH is a folder in this layer, or something else: a link there is where upper layers
        wrote through.
        """
        if kind == "dir":
            self._made[path] = self.number
            if self._meant.get(path, self.number) < self.number:
                del self._meant[path]
                self._cleared[path] = self.number
        elif self._made.get(path) == self.number:
            raise NeedsTwoPasses(f"{path} is twice in one layer")
        elif path in self._meant or self._cleared.get(path) == self.number:
            raise NeedsTwoPasses(
                f"{path} is not a folder, and layers above say something of what lies in it"
            )

    def _hides(self, folder: str) -> bool:
        """Whether what lies in FOLDER in this layer is hidden by a layer above."""
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
            or self._hides(folder.rpartition("/")[0])
        )
        self._hidden[folder] = hidden
        return hidden

    def _parents(self, folder: str) -> None:
        while folder and folder not in self.seen:
            self._hold(folder)
            self.seen[folder] = ("implied", self.number)
            folder = folder.rpartition("/")[0]
        if folder and self.seen[folder] == ("hard", self.number):
            raise NeedsTwoPasses(f"{folder} is not a folder, but something lies in it")

    def _link(self, entry: TreeEntry) -> str:
        kind, number = self.seen.get(entry.target, ("", 0))
        if number != self.number or kind in ("dir", "implied"):
            raise NeedsTwoPasses(
                f"{entry.path} is a link to {entry.target}, which is not of its own layer"
            )
        if kind == "device":
            return kind  # another name of what is not in the image
        self.links.append((entry.path, entry.target))
        return "hard"


@dataclass
class Node:
    """One name in the tree of `plan_layers`."""

    kind: str
    source: (
        tuple[int, int] | None
    )  # (layer from the bottom, number of the member in it); None for an implied folder
    target: str = ""
    children: dict[str, Node] = field(default_factory=dict)


@dataclass
class Root(Node):
    """The top of the tree; `left` are the steps that looking names up may still take."""

    left: int = 0


def plan_layers(
    layers: Sequence[Iterable[TreeEntry]],
) -> tuple[dict[tuple[int, int], list[str]], list[str]]:
    """LAYERS applied, oldest first: {(layer from the bottom, number of the member in it): its names
    in the image}.

    And the folders that are there though no layer names them.
    """
    whole = [list(layer) for layer in layers]
    root = Root("dir", None, left=STEPS + STEPS_AN_ENTRY * sum(map(len, whole)))
    for number, entries in enumerate(whole):
        for entry in entries:
            removed = parse_whiteout(entry.path)
            if removed:
                _remove(root, removed)
        for place, entry in enumerate(entries):
            if parse_whiteout(entry.path) is None:
                _apply(root, entry, (number, place))
    names: dict[tuple[int, int], list[str]] = {}
    implied: list[str] = []
    _walk(root, "", names, implied)
    return names, implied


def _remove(root: Root, path: str) -> None:
    parent, _, name = path.rpartition("/")
    folder = _folder(root, parent, make=False)
    if folder is None:
        return
    if name:
        folder.children.pop(name, None)
    else:
        folder.children.clear()


def _apply(root: Root, entry: TreeEntry, source: tuple[int, int]) -> None:
    if not entry.path:
        root.source = source
        return
    folder, _, name = entry.path.rpartition("/")
    parent = _folder(root, folder)
    assert parent
    old = parent.children.get(name)
    if entry.kind == "hard":
        found = _find(root, entry.target)
        if found is None or found.kind == "dir":
            raise ClimbsOut(f"has {entry.path} as a link to {entry.target}, which does not exist")
        parent.children[name] = found
    elif entry.kind == "dir" and old and old.kind == "dir":
        old.source = source
    else:
        parent.children[name] = Node(entry.kind, source, entry.target)


def _find(root: Root, path: str) -> Node | None:
    folder, _, name = path.rpartition("/")
    node: Node | None = root
    for part in filter(None, folder.split("/")):
        node = node.children.get(part) if node else None
        if node and node.kind == "link":
            node = _folder(root, folder)
            break
    return node.children.get(name) if node else None


def _folder(root: Root, path: str, *, make: bool = True) -> Node | None:
    """The folder at PATH, made where it is missing (or None); links on the way are followed inside
    the image.
    """
    node: Node = root
    trail: list[Node] = [root]
    rest, links = [part for part in reversed(path.split("/")) if part], 0
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
    if node.source is None:
        implied.append(path)
    elif node.kind != "device":
        names.setdefault(node.source, []).append(path)
    for name in sorted(node.children):
        _walk(node.children[name], posixpath.join(path, name), names, implied)
