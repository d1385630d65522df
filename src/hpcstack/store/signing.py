"""Signatures: Apptainer's own for a SIF; for a .sqsh a detached one, beside it, by OpenSSH's
ssh-keygen.

What is signed is a statement: these bytes are this stack, NAME-VERSION, built from this lock;
signed at this time. So a good signature of another image cannot be put beside this one, and a
signed image cannot be called something else. ssh-keygen (OpenSSH 8.2) is on every login node, and
every user has such a key. The namespace says what was signed, so that a signature of something else
never counts: https://man.openbsd.org/ssh-keygen (-Y sign, -Y verify).
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import AnswerIsNo, InputError
from hpcstack.core.files import read_bytes, write_text
from hpcstack.core.untrusted import parse_untrusted_json

if TYPE_CHECKING:
    from hpcstack.core.process import Runner
    from hpcstack.store.artifact import Artifact

NAMESPACE = "hpcstack-image"
SIGNER = "hpcstack"
FORMAT = "hpcstack/signature/v1"
MAX_STATEMENT, MAX_KEY = 64 << 10, 64 << 10


@dataclass(frozen=True)
class Statement:
    """What a signer says of an image; STACK (its full name) and LOCK_SHA256 are empty where nobody
    knows them.
    """

    sha256: str
    stack: str = ""
    lock_sha256: str = ""
    signed: str = ""  # a day and a time of UTC
    adopted: str = (
        ""  # where the image was taken from, if its signer knew that hpcstack did not build it
    )
    format: str = FORMAT

    def differs(self, other: Statement) -> str:
        """What OTHER, which is what is known of the image, has that was not signed; empty if
        nothing is.
        """
        pairs = [
            (name, getattr(self, name), getattr(other, name))
            for name in ("sha256", "stack", "lock_sha256")
        ]
        return ", ".join(
            f"it was signed with {name.replace('_', ' ')} {mine or 'unknown'}, and has {theirs}"
            for name, mine, theirs in pairs
            if theirs and mine != theirs
        )


def signature_of(image: Path) -> Path:
    """Where the detached signature of a squashfs lies."""
    return image.with_name(image.name + ".sig")


def statement_of(image: Path) -> Path:
    """Where the statement lies that the signature is of."""
    return image.with_name(image.name + ".signed.json")


def sign_image(image: Path, key: str, runner: Runner, what: Statement) -> Path:
    """IMAGE signed with the private KEY (a file) as what WHAT says it is; the file that holds the
    signature.
    """
    if image.suffix == ".sif":
        status = runner.attached(
            ["apptainer", "sign", *(["--key", key] if key else []), str(image)]
        )
        if status:
            raise AnswerIsNo(
                f"apptainer did not sign {image} (exit {status})",
                "apptainer key newpair makes a key",
            )
        return image
    private = _private(key)
    day = datetime.now(timezone.utc).isoformat(timespec="seconds")
    text = json.dumps({**asdict(what), "signed": day}, indent=1, sort_keys=True) + "\n"
    with tempfile.TemporaryDirectory(prefix="hpcstack-sign-") as name:
        stated = Path(name) / "statement.json"
        stated.write_text(text, encoding="utf-8")
        status = runner.attached(
            ["ssh-keygen", "-q", "-Y", "sign", "-f", str(private), "-n", NAMESPACE, str(stated)]
        )
        made = signature_of(stated)
        if status or not made.exists():
            raise AnswerIsNo(
                f"ssh-keygen did not sign {image} (exit {status})", f"is {private} a private key?"
            )
        signature = made.read_text(encoding="utf-8")
    write_text(
        statement_of(image), text
    )  # a kill between the two leaves a signature that is not good, and says so
    write_text(signature_of(image), signature)
    return signature_of(image)


def verify_signature(image: Path, key: str, runner: Runner, what: Statement) -> tuple[bool, str]:
    """Whether IMAGE is signed, by the public KEY (a file), as what WHAT says it is; and why, or
    what the tool said.
    """
    if image.suffix == ".sif":
        done = runner.output(
            ["apptainer", "verify", *(["--key", key] if key else []), str(image)], timeout=600
        )
        return done.status == 0, done.tail[-1] if done.tail else ""
    try:
        signature = read_bytes(signature_of(image), MAX_STATEMENT)
    except FileNotFoundError:
        return False, "it is not signed"
    try:
        text = read_bytes(statement_of(image), MAX_STATEMENT)
    except FileNotFoundError:
        return (
            False,
            "it has an older signature, which covers only bytes and names no stack; sign it again",
        )
    return _judged(text, signature, _keys_of(_public(key, runner)), runner, what)


def verify_by(
    image: Path, keys: tuple[str, ...], runner: Runner, what: Statement
) -> tuple[bool, str]:
    """`verify_signature` by KEYS, lines of OpenSSH's public keys."""
    try:
        signature = read_bytes(signature_of(image), MAX_STATEMENT)
        text = read_bytes(statement_of(image), MAX_STATEMENT)
    except FileNotFoundError:
        return False, "it is not signed"
    return _judged(text, signature, list(keys), runner, what)


def is_trusted(private: str, keys: tuple[str, ...], runner: Runner) -> bool:
    """Whether the public half of a PRIVATE key (a file) is one of KEYS.

    InputError where there is no such file.
    """
    path = _private(private)
    public = path.with_name(f"{path.name}.pub")
    if public.is_file():
        said = read_bytes(public.resolve(), MAX_KEY).decode("utf-8", "replace")
    else:
        said = runner.output(["ssh-keygen", "-y", "-P", "", "-f", str(path)], timeout=30).stdout
    return said.split()[:2] in [line.split()[:2] for line in keys] and len(said.split()) > 1


def _private(key: str) -> Path:
    private = Path(key).expanduser() if key else Path.home() / ".ssh/id_ed25519"
    if not private.is_file():
        raise InputError(
            f"there is no key {private}",
            "signatures.sign_with in site.yaml, or --key; to make one: ssh-keygen -t ed25519",
        )
    return private


def why_untrusted(artifact: Artifact, keys: tuple[str, ...], runner: Runner) -> str:
    """Why the image of ARTIFACT is not one that an owner of KEYS (OpenSSH's public keys) has
    signed; empty where it is.

    Its bytes are not read again: the signature is of the digest that the store wrote down.
    """
    what = Statement(artifact.sha256, artifact.stack, artifact.lock_sha256)
    lacking = [name for name in ("sha256", "stack", "lock_sha256") if not getattr(what, name)]
    if lacking:  # what is empty is compared with nothing, and any signed image would pass
        return f"its record names no {lacking[0].replace('_', ' ')}"
    good, said = verify_by(artifact.image, keys, runner, what)
    return "" if good else said


def _judged(
    text: bytes, signature: bytes, keys: list[str], runner: Runner, what: Statement
) -> tuple[bool, str]:
    good, said = _is_good(text, signature, keys, runner)
    if not good:
        return False, said
    signed = _read(text)
    if signed is None:
        return False, "what was signed is not a statement of an image"
    wrong = signed.differs(what)
    adopted = f"; ADOPTED, not built by hpcstack: {signed.adopted}" if signed.adopted else ""
    return not wrong, wrong or f"{said}; signed {signed.signed}{adopted}"


def _public(key: str, runner: Runner) -> Path:
    public = Path(key).expanduser() if key else Path.home() / ".ssh/id_ed25519.pub"
    if not public.is_file():
        raise InputError(f"there is no public key {public}", "name the signer's with --key")
    if runner.output(["ssh-keygen", "-l", "-f", str(public)]).status:
        raise InputError(f"{public} is not a public key", "the signer's key ends in .pub")
    return public


def _keys_of(public: Path) -> list[str]:
    lines = read_bytes(public.resolve(), MAX_KEY).decode("utf-8", "replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


def _is_good(text: bytes, signature: bytes, keys: list[str], runner: Runner) -> tuple[bool, str]:
    """What ssh-keygen says of SIGNATURE of TEXT.

    Both are copies of our own: nobody changes them meanwhile.
    """
    with tempfile.TemporaryDirectory(prefix="hpcstack-verify-") as name:
        signers, stated, detached = (
            Path(name) / one for one in ("signers", "statement", "signature")
        )
        signers.write_text("".join(f"{SIGNER} {line}\n" for line in keys), encoding="utf-8")
        stated.write_bytes(text)
        detached.write_bytes(signature)
        argv = [
            "ssh-keygen",
            "-Y",
            "verify",
            "-f",
            str(signers),
            "-I",
            SIGNER,
            "-n",
            NAMESPACE,
            "-s",
            str(detached),
        ]
        done = runner.output(argv, timeout=60, stdin=stated)
    said = done.tail[-1] if done.tail else f"exit {done.status}"
    if said.startswith("Could not verify"):
        said = "it was not signed with a key that counts here, or was changed afterwards"
    return done.status == 0, said


def _read(text: bytes) -> Statement | None:
    try:
        found: dict[str, Any] = parse_untrusted_json(text, MAX_STATEMENT)
        one = Statement(**found)
    except (TypeError, ValueError):
        return None
    return (
        one
        if one.format == FORMAT and all(isinstance(value, str) for value in asdict(one).values())
        else None
    )
