"""Verify: whether an image is what was stored, two images are the same stack, a build gives the
same bytes again.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack.build.base import base_of
from hpcstack.build.build import BuildPolicy, make_image
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import digest_of
from hpcstack.core.untrusted import parse_untrusted_json
from hpcstack.oci.compare import (
    ENVIRONMENT,
    PACKAGES,
    Contents,
    Held,
    Parity,
    compare_contents,
    find_differences,
)
from hpcstack.oci.flatten import entry_of
from hpcstack.oci.tar import Flow, Members
from hpcstack.releases.records import read_releases
from hpcstack.squashfs.splice import read_splice
from hpcstack.store import signing
from hpcstack.store.contents import read_optional
from hpcstack.store.find import find_file, find_image, find_stored, is_file
from hpcstack.store.signing import Statement, signature_of
from hpcstack.store.workspace import make_workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcstack.build.request import BuildRequest
    from hpcstack.build.workbench import Workbench
    from hpcstack.core.process import Runner
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store

PIECE = 1 << 20
MAX_ABOUT, MAX_TEXT = 1 << 20, 64 << 20  # bytes of stack.json, of lists of packages


@dataclass
class Read:
    """One image, read: what it holds, and the texts that are compared as texts."""

    contents: dict[str, Held] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def read_image(image: Path, runner: Runner) -> Read:
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


def make_statement(text: str, store: Store, stack: str = "") -> Statement:
    """What is known of the image that TEXT means: its bytes, read now; its stack; and the lock,
    where the store has it.

    STACK is what it must be; without it, what was asked for, or for a file what it says of itself.
    """
    path = find_file(text, store)
    if path.suffix == ".sif" and stack:
        raise InputError(
            "the signature of a SIF is Apptainer's, which names no stack",
            "sign the .sqsh, or leave out --stack",
        )
    if path.suffix == ".sif":
        return Statement("")
    lock = adopted = ""
    with contextlib.suppress(InputError):
        known = find_stored(text, store)
        stack, lock, adopted = stack or known.stack, known.lock_sha256, known.adopted
    return Statement(digest_of(path), stack or own_name(path), lock, adopted=adopted)


def own_name(image: Path) -> str:
    """The stack that IMAGE says it is; empty for one that hpcstack did not build."""
    try:
        found = parse_untrusted_json(
            read_optional(image, "opt/hpcstack/stack.json").encode(), MAX_ABOUT
        )
    except ValueError:
        return ""
    return str(found.get("stack", ""))


def describe_any_image(text: str, store: Store) -> dict[str, Any]:
    """All that is known of an image: what the store wrote down, or for a file what it says of
    itself.
    """
    if is_file(text):
        path = find_file(text, store)
        said = read_optional(path, "opt/hpcstack/stack.json")
        try:
            own = parse_untrusted_json(said.encode(), MAX_ABOUT)
        except ValueError:
            own = {"stack": "", "about": "not built by hpcstack"}
        return {**own, "image": str(path), "size": path.stat().st_size, **_spliced(path)}
    found = find_image(text, store)
    published = [name for name, record in read_releases(store) if record.key == found.key]
    signed = signature_of(found.image).is_file()
    return {**found.as_dict(), "published": published, "signed": signed, **_spliced(found.image)}


def _spliced(image: Path) -> dict[str, Any]:
    """Of a spliced image: the bytes that it keeps of its base, how deep the chain is, the bytes
    that are no file's.
    """
    about = read_splice(image)
    if about is None:
        return {}
    return {
        "spliced": {
            "kept_bytes": about.kept,
            "depth": about.depth,
            "dead_bytes": about.dead,
            "base": about.base,
        }
    }


def compare_images(one: str, other: str, store: Store, runner: Runner) -> Parity:
    """Whether two images, ONE and OTHER as `find_file` knows them, are the same stack, whatever
    engine made them.
    """
    paths = [
        find_file(text, store) for text in (one, other)
    ]  # what is named wrongly is told before anything is read
    first, second = (read_image(path, runner) for path in paths)
    return compare_contents(first.contents, second.contents, (first.texts, second.texts))


def check_reproducible(request: BuildRequest, bench: Workbench) -> list[str] | None:
    """Two builds of REQUEST, nothing kept between them: None for the same bytes, else where they
    differ.
    """
    base = base_of(request.lock, request.platform, bench)
    contents: list[Contents] = []
    digests = []
    for number in (1, 2):
        bench.progress(f"build {number} of 2 with {request.engine.name}")
        with make_workspace(request.site, bench.runner, request.needed_bytes) as work:
            kept = bench.store.top / "logs" / f"{request.stack.full_name}-reproducible-{number}.log"
            _, made = make_image(work, request, base, bench, BuildPolicy(fresh=True), kept)
            digests.append(digest_of(made.image))
            contents.append(read_image(made.image, bench.runner).contents)
    if digests[0] == digests[1]:
        return None
    return find_differences(*contents) or [
        "no file differs: only times or the order of the packer's blocks do"
    ]


def check_stored(text: str, store: Store) -> Artifact:
    """The stored image that TEXT means. StoreError where it is not what was built, says it is of
    another stack, or is not what was published.
    """
    found = find_stored(text, store)
    digest = digest_of(found.image)
    if digest != found.sha256:
        raise StoreError(
            f"{found.image} has other bytes than were stored",
            f"hpcstack build --no-cache {found.stack}",
        )
    if (own := own_name(found.image)) != found.stack:
        raise StoreError(
            f"{found.image} is stored as {found.stack} and says it is {own or 'no stack'}",
            "build again",
        )
    for release, record in read_releases(store):
        if record.key == found.key and record.sha256 != digest:
            raise StoreError(
                f"{found.image} is whole, but {release} was published with {record.sha256[:12]}",
                f"bring the old one back from a backup, or hpcstack remove {release}",
            )
    return found


def check_signature(
    text: str, key: str, stack: str, site: Site, store: Store, runner: Runner
) -> tuple[Path, bool, str]:
    """(the image that TEXT means, whether its signature is good, what is said of it): by KEY, else
    by the site's keys.

    STACK is what the image must be; for a SIF, Apptainer's own signature counts.
    """
    image, keys = find_file(text, store), site.signatures.keys
    what = make_statement(text, store, stack)
    if keys and not key and image.suffix != ".sif":
        return (image, *signing.verify_by(image, keys, runner, what))
    return (image, *signing.verify_signature(image, key, runner, what))
