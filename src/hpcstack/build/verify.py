"""Verify: whether an image is what was stored, two images are the same stack, a build gives the same bytes again."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack.build.base import base_of
from hpcstack.build.build import How, make_image
from hpcstack.core.errors import InputError
from hpcstack.core.files import digest_of
from hpcstack.core.untrusted import document
from hpcstack.oci.compare import ENVIRONMENT, PACKAGES, Contents, Held, Parity, compare, exact
from hpcstack.oci.flatten import entry_of
from hpcstack.oci.tar import Flow, Members
from hpcstack.releases.records import releases
from hpcstack.store.artifact import as_dict
from hpcstack.store.contents import read_optional
from hpcstack.store.find import find_file, find_image, find_stored, is_file
from hpcstack.store.signing import Statement, signature_of
from hpcstack.store.workspace import workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcstack.build.request import BuildRequest
    from hpcstack.build.workbench import Workbench
    from hpcstack.core.process import Runner
    from hpcstack.store.store import Store

PIECE = 1 << 20
MAX_ABOUT, MAX_TEXT = 1 << 20, 64 << 20  # bytes of stack.json, of lists of packages


@dataclass
class Read:
    """One image, read: what it holds, and the texts that are compared as texts."""

    contents: dict[str, Held] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def read(image: Path, runner: Runner) -> Read:
    """All that IMAGE (a squashfs) holds, as a stream: nothing is unpacked."""
    out, wanted = Read(), {*PACKAGES.values(), *ENVIRONMENT}
    with runner.read(["sqfs2tar", str(image)]) as pipe:
        members = Members(Flow(_pieces(pipe)))
        for member in members:
            entry = entry_of(member)
            if entry.kind == "hard":
                out.contents[entry.path] = out.contents.get(entry.target, Held("file"))
            elif entry.kind == "link":
                out.contents[entry.path] = Held("link", 0, entry.target)
            elif entry.kind == "dir":
                out.contents[entry.path] = Held("dir", member.mode)
            else:
                digest, text = hashlib.sha256(), bytearray()
                for piece in members.body(member):
                    digest.update(piece)
                    text += piece if entry.path in wanted and len(text) < MAX_TEXT else b""
                out.contents[entry.path] = Held("file", member.mode, digest.hexdigest())
                if entry.path in wanted:
                    out.texts[entry.path] = text.decode(errors="replace")
    return out


def _pieces(pipe: object) -> Iterator[bytes]:
    reader = pipe.read  # type: ignore[attr-defined]
    while block := reader(PIECE):
        yield block


def statement(text: str, store: Store, runner: Runner, stack: str = "") -> Statement:
    """What is known of the image that TEXT means: its bytes, read now; its stack; and the lock, where the store has it.

    STACK is what it must be; without it, what was asked for, or for a file what it says of itself.
    """
    path = find_file(text, store)
    if path.suffix == ".sif" and stack:
        raise InputError(
            "the signature of a SIF is Apptainer's, which names no stack", "sign the .sqsh, or leave out --stack"
        )
    if path.suffix == ".sif":
        return Statement("")
    lock = ""
    with contextlib.suppress(InputError):
        known = find_stored(text, store)
        stack, lock = stack or known.stack, known.lock_sha256
    return Statement(digest_of(path), stack or own_name(path, runner), lock)


def own_name(image: Path, runner: Runner) -> str:
    """The stack that IMAGE says it is; empty for one that hpcstack did not build."""
    try:
        found = document(read_optional(image, "opt/hpcstack/stack.json", runner).encode(), MAX_ABOUT)
    except ValueError:
        return ""
    return str(found.get("stack", ""))


def about(text: str, store: Store, runner: Runner) -> dict[str, Any]:
    """All that is known of an image: what the store wrote down, or for a file what it says of itself."""
    if is_file(text):
        path = find_file(text, store)
        said = read_optional(path, "opt/hpcstack/stack.json", runner)
        try:
            own = document(said.encode(), MAX_ABOUT)
        except ValueError:
            own = {"stack": "", "about": "not built by hpcstack"}
        return {**own, "image": str(path), "size": path.stat().st_size}
    found = find_image(text, store)
    published = [name for name, record in releases(store) if record["key"] == found.key]
    signed = signature_of(found.image).is_file()
    return {**as_dict(found), "published": published, "signed": signed}


def parity(one: Path, other: Path, runner: Runner) -> Parity:
    """Whether two images are the same stack, whatever engine made them."""
    first, second = read(one, runner), read(other, runner)
    return compare(first.contents, second.contents, (first.texts, second.texts))


def reproducible(request: BuildRequest, bench: Workbench) -> list[str] | None:
    """Two builds of ORDER, nothing kept between them: None for the same bytes, else where they differ."""
    base = base_of(request.lock, request.platform, bench)
    contents: list[Contents] = []
    digests = []
    for number in (1, 2):
        bench.progress(f"build {number} of 2 with {request.engine.name}")
        with workspace(request.site, bench.runner, request.needed_bytes) as work:
            kept = bench.store.top / "logs" / f"{request.stack.full_name}-reproducible-{number}.log"
            job = make_image(work, request, base, bench, How(fresh=True), kept)
            digests.append(digest_of(job.output))
            contents.append(read(job.output, bench.runner).contents)
    if digests[0] == digests[1]:
        return None
    return exact(*contents) or ["no file differs: only times or the order of the packer's blocks do"]
