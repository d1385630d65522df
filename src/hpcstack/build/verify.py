"""Verify images.

Three questions: whether an image is still what was stored, whether two images are the same stack,
and whether a build gives the same bytes again.

Tested in tests/hostile/test_layers.py and tests/integration/test_engines.py.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hpcstack.build.base import provide_base
from hpcstack.build.build import make_image
from hpcstack.core.errors import AnswerIsNo, InputError, StoreError
from hpcstack.core.files import digest_of
from hpcstack.oci.compare import (
    ENVIRONMENT,
    PACKAGES,
    Contents,
    Held,
    Parity,
    compare_contents,
    find_differences,
)
from hpcstack.oci.flatten import make_entry
from hpcstack.oci.tar import Flow, Members
from hpcstack.releases.records import read_releases
from hpcstack.releases.seal import take_seal, write_image_seal
from hpcstack.squashfs.splice import read_splice
from hpcstack.store import signing
from hpcstack.store.contents import read_about
from hpcstack.store.signing import Statement, name_signature
from hpcstack.store.workspace import make_workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcstack.build.request import BuildRequest
    from hpcstack.build.workbench import Workbench
    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Say
    from hpcstack.naming.names import ImageFile
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store

PIECE = 1 << 20  # bytes that are read at once
MAX_TEXT = 64 << 20  # bytes of a list of packages


@dataclass
class Read:
    """What one image holds: {path: entry}, and the text of the files that are compared as text."""

    contents: dict[str, Held] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def read_image(image: Path, runner: Runner) -> Read:
    """Read all that IMAGE (a squashfs) holds from one stream; nothing is unpacked to disk."""
    out = Read()
    wanted = {*PACKAGES.values(), *ENVIRONMENT}

    with runner.read(["sqfs2tar", str(image)]) as pipe:
        members = Members(Flow(_read_pieces(pipe)))
        for member in members:
            entry = make_entry(member)
            if entry.kind == "hard":
                # Another name of a file that came before it.
                out.contents[entry.path] = out.contents.get(entry.target, Held("file"))
            elif entry.kind == "link":
                out.contents[entry.path] = Held("link", 0, entry.target)
            elif entry.kind == "dir":
                out.contents[entry.path] = Held("dir", member.mode)
            else:
                digest = hashlib.sha256()
                text = bytearray()
                for piece in members.body(member):
                    digest.update(piece)
                    if entry.path in wanted and len(text) < MAX_TEXT:
                        text += piece
                out.contents[entry.path] = Held("file", member.mode, digest.hexdigest())
                if entry.path in wanted:
                    out.texts[entry.path] = text.decode(errors="replace")
    return out


def _read_pieces(pipe: object) -> Iterator[bytes]:
    """Yield what PIPE holds, in pieces of at most PIECE bytes."""
    reader = pipe.read  # type: ignore[attr-defined]
    while block := reader(PIECE):
        yield block


def make_statement(image: ImageFile, stack: str = "", sha256: str = "") -> Statement:
    """Return what a signature states of IMAGE: its sha256, its stack, its lock.

    The sha256 is computed now, unless the caller has just done it: SHA256. The lock is known where
    the store has the image. The stack is STACK; if that is empty, the one in the store's record,
    else the one that the image names itself. A SIF gets an empty statement, because Apptainer signs
    it. Raise InputError for a SIF with a STACK.
    """
    path = image.path
    if path.suffix == ".sif" and stack:
        raise InputError(
            "the signature of a SIF is Apptainer's, which names no stack",
            "sign the .sqsh, or leave out --stack",
            page="sign-images",
        )
    if path.suffix == ".sif":
        return Statement("")

    lock = ""
    adopted = ""
    if image.stored:
        stack = stack or image.stored.stack
        lock = image.stored.lock_sha256
        adopted = image.stored.adopted
    return Statement(sha256 or digest_of(path), stack or read_own_name(path), lock, adopted=adopted)


def read_own_name(image: Path) -> str:
    """Return the stack that IMAGE says it is; empty for one that hpcstack did not build."""
    return str(read_about(image).get("stack", ""))


def describe_image_file(image: ImageFile, store: Store) -> dict[str, Any]:
    """Return all that is known of IMAGE: STORE's record; without one, what it says of itself."""
    if not image.stored:
        path = image.path
        own = read_about(path) or {"stack": "", "about": "not built by hpcstack"}
        size = path.stat().st_size
        return {**own, "image": str(path), "size": size, **_describe_splice(path)}

    found, path = image.stored, image.stored.image
    published = [name for name, record in read_releases(store) if record.key == found.key]
    signed = name_signature(path).is_file()
    return {
        **found.as_dict(),
        "published": published,
        "signed": signed,
        **_describe_splice(path),
    }


def _describe_splice(image: Path) -> dict[str, Any]:
    """Return what a spliced IMAGE keeps of its base; nothing for one that is not spliced.

    `kept_bytes` are those kept of the base, `depth` is the length of the chain of bases, and
    `dead_bytes` are those that belong to no file any more.
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


def compare_images(one: Path, other: Path, runner: Runner) -> Parity:
    """Compare what the images ONE and OTHER hold, whatever engine made them."""
    first, second = (read_image(path, runner) for path in (one, other))
    return compare_contents(first.contents, second.contents, (first.texts, second.texts))


def check_reproducible(request: BuildRequest, bench: Workbench) -> list[str] | None:
    """Build REQUEST twice from scratch; return None for the same bytes, else where they differ."""
    base = provide_base(request.lock, request.platform, bench)
    request = replace(request, options=replace(request.options, fresh=True))
    contents: list[Contents] = []
    digests = []

    for number in (1, 2):
        bench.progress(f"build {number} of 2 with {request.engine.name}")
        with make_workspace(request.site, bench.runner, request.needed_bytes) as work:
            kept = bench.store.top / "logs" / f"{request.stack.full_name}-reproducible-{number}.log"
            _, made = make_image(work, request, base, bench, kept)
            digests.append(digest_of(made.image))
            contents.append(read_image(made.image, bench.runner).contents)

    if digests[0] == digests[1]:
        return None
    return find_differences(*contents) or [
        "no file differs: only times or the order of the packer's blocks do"
    ]


def check_stored(found: Artifact, store: Store) -> None:
    """Check that the image FOUND in STORE is sound.

    Raise StoreError where its bytes are not those that were stored, where it says that it is of
    another stack, or where a release of it was published with other bytes.
    """
    digest = digest_of(found.image)
    if digest != found.sha256:
        raise StoreError(
            f"{found.image} has other bytes than were stored",
            f"hpcstack build --no-cache {found.stack}",
            page="repair-what-is-published",
        )

    own = read_own_name(found.image)
    if own != found.stack:
        raise StoreError(
            f"{found.image} is stored as {found.stack} and says it is {own or 'no stack'}",
            f"hpcstack build --no-cache {found.stack}",
            page="repair-what-is-published",
        )

    for release, record in read_releases(store):
        if record.key == found.key and record.sha256 != digest:
            raise StoreError(
                f"{found.image} is whole, but {release} was published with {record.sha256[:12]}",
                f"bring the old one back from a backup, or hpcstack remove {release}",
                page="repair-what-is-published",
            )


def sign_image_file(
    image: ImageFile, key: str, site: Site, store: Store, runner: Runner, say: Say
) -> Path:
    """Sign IMAGE with KEY, or the site's own; return its signature.

    An image in STORE gets a seal, which SAY says where it cannot. AnswerIsNo where a signature that
    this site trusts would be lost to a key that it does not.
    """
    path = image.path
    settings = site.signatures
    key = key or settings.sign_with
    stored = image.stored.image if image.stored and path.suffix != ".sif" else None
    seal = take_seal(stored) if stored else None
    statement = make_statement(image, sha256=seal.sha256 if seal else "")

    # A new signature takes the place of the old one.
    has_trusted_signature = (
        settings.keys
        and path.suffix != ".sif"
        and signing.verify_by(path, settings.keys, runner, statement)[0]
    )
    if has_trusted_signature and not signing.is_trusted(key, settings.keys, runner):
        raise AnswerIsNo(
            f"{path} has a signature that this site trusts, and it does not trust this key",
            "signatures.keys in site.yaml names the keys that count",
            page="sign-images",
        )

    signature = signing.sign_image(path, key, runner, statement)
    if stored and seal and not write_image_seal(stored, seal, store):
        say(f"{path} has no seal: only a publisher of this site can give it one")
    return signature


def check_signature(
    image: ImageFile, key: str, stack: str, site: Site, store: Store, runner: Runner
) -> tuple[bool, str]:
    """Return whether IMAGE's signature is good, and an explanation.

    The signature is checked by KEY, or without it by the site's keys. STACK is what the image must
    be. For a SIF, Apptainer's own signature counts. Where it is good, and this user is a publisher,
    the seal of an image in STORE is renewed.
    """
    path = image.path
    keys = site.signatures.keys
    if path.suffix == ".sif":
        return signing.verify_signature(path, key, runner, make_statement(image, stack))

    stored = image.stored.image if image.stored else None
    seal = take_seal(stored) if stored else None
    what = make_statement(image, stack, seal.sha256 if seal else "")
    if keys and not key:
        good, said = signing.verify_by(path, keys, runner, what)
    else:
        good, said = signing.verify_signature(path, key, runner, what)
    if good and stored and seal:
        write_image_seal(stored, seal, store)
    return good, said
