"""Signatures of images.

A SIF has Apptainer's own. A .sqsh has a detached one beside it, made by OpenSSH's ssh-keygen, which
is on every login node (OpenSSH 8.2); and users have keys for it.

What is signed is a statement: these bytes are this stack, NAME-VERSION, built from this lock,
signed at this time. So a good signature of another image cannot be put beside this one, and a
signed image cannot be passed off as another stack. The namespace tells what kind of thing was
signed, so that a signature of anything else never counts: https://man.openbsd.org/ssh-keygen
(-Y sign, -Y verify).

Tested in tests/hostile/test_gifts.py and tests/unit/cli/test_site_signatures.py.
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
SIGNER = "hpcstack"  # the identity that ssh-keygen asks for: the keys that count all have it
FORMAT = "hpcstack/signature/v1"
MAX_STATEMENT, MAX_KEY = 64 << 10, 64 << 10  # bytes


@dataclass(frozen=True)
class Statement:
    """What a signer says of an image."""

    sha256: str
    stack: str = ""  # the full name; empty where nobody knows it
    lock_sha256: str = ""  # empty where nobody knows it
    signed: str = ""  # a day and a time in UTC
    # where the image was taken from, if its signer knew that hpcstack did not build it
    adopted: str = ""
    format: str = FORMAT

    def differs(self, other: Statement) -> str:
        """Return what OTHER says that this statement does not; empty where there is nothing.

        OTHER is what is known of the image. What is empty in it is not compared.
        """
        differences = []
        for name in ("sha256", "stack", "lock_sha256"):
            signed, known = getattr(self, name), getattr(other, name)
            if known and signed != known:
                label = name.replace("_", " ")
                differences.append(
                    f"it was signed with {label} {signed or 'unknown'}, and has {known}"
                )
        return ", ".join(differences)


def name_signature(image: Path) -> Path:
    """Return where the detached signature of a squashfs lies."""
    return image.with_name(image.name + ".sig")


def name_statement(image: Path) -> Path:
    """Return where the statement lies that the signature is of."""
    return image.with_name(image.name + ".signed.json")


def sign_image(image: Path, key: str, runner: Runner, what: Statement) -> Path:
    """Sign IMAGE with the private KEY (a file), as what WHAT says it is.

    Return the file that holds the signature. The tool may ask for the key's passphrase. AnswerIsNo
    where it does not sign.
    """
    if image.suffix == ".sif":
        options = ["--key", key] if key else []
        status = runner.attached(["apptainer", "sign", *options, str(image)])
        if status:
            raise AnswerIsNo(
                f"apptainer did not sign {image} (exit {status})",
                "apptainer key newpair makes a key",
                page="sign-images",
            )
        return image

    private = _find_private_key(key)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    text = json.dumps({**asdict(what), "signed": now}, indent=1, sort_keys=True) + "\n"
    with tempfile.TemporaryDirectory(prefix="hpcstack-sign-") as name:
        stated = Path(name) / "statement.json"
        stated.write_text(text, encoding="utf-8")
        status = runner.attached(
            ["ssh-keygen", "-q", "-Y", "sign", "-f", str(private), "-n", NAMESPACE, str(stated)]
        )
        made = name_signature(stated)
        if status or not made.exists():
            raise AnswerIsNo(
                f"ssh-keygen did not sign {image} (exit {status})",
                f"is {private} a private key?",
                page="sign-images",
            )
        signature = made.read_text(encoding="utf-8")

    # A kill between the two leaves an old signature beside a new statement, which is refused.
    write_text(name_statement(image), text)
    write_text(name_signature(image), signature)
    return name_signature(image)


def verify_signature(image: Path, key: str, runner: Runner, what: Statement) -> tuple[bool, str]:
    """Return whether IMAGE is signed with KEY as what WHAT says it is; and why, in words.

    KEY is the file of a public key. A SIF is verified by Apptainer.
    """
    if image.suffix == ".sif":
        options = ["--key", key] if key else []
        done = runner.output(["apptainer", "verify", *options, str(image)], timeout=600)
        return done.status == 0, done.tail[-1] if done.tail else ""

    try:
        signature = read_bytes(name_signature(image), MAX_STATEMENT)
    except FileNotFoundError:
        return False, "it is not signed"
    try:
        text = read_bytes(name_statement(image), MAX_STATEMENT)
    except FileNotFoundError:
        # As older versions of hpcstack signed: the signature is of the image itself.
        return (
            False,
            "it has an older signature, which covers only bytes and names no stack; sign it again",
        )
    keys = _read_keys(_find_public_key(key, runner))
    return _judge_signature(text, signature, keys, runner, what)


def verify_by(
    image: Path, keys: tuple[str, ...], runner: Runner, what: Statement
) -> tuple[bool, str]:
    """Do as `verify_signature` for a .sqsh, with KEYS as lines of OpenSSH public keys."""
    try:
        signature = read_bytes(name_signature(image), MAX_STATEMENT)
        text = read_bytes(name_statement(image), MAX_STATEMENT)
    except FileNotFoundError:
        return False, "it is not signed"
    return _judge_signature(text, signature, list(keys), runner, what)


def is_trusted(private: str, keys: tuple[str, ...], runner: Runner) -> bool:
    """Whether the public half of a PRIVATE key (a file) is one of KEYS.

    InputError where there is no such file.
    """
    path = _find_private_key(private)
    public = path.with_name(f"{path.name}.pub")
    if public.is_file():
        line = read_bytes(public.resolve(), MAX_KEY).decode("utf-8", "replace")
    else:
        line = runner.output(["ssh-keygen", "-y", "-P", "", "-f", str(path)], timeout=30).stdout
    # Type and key are compared; what follows them is a comment.
    return line.split()[:2] in [known.split()[:2] for known in keys] and len(line.split()) > 1


def _find_private_key(key: str) -> Path:
    """Return the file KEY, by default the user's ed25519 key. InputError where it is not there."""
    private = Path(key).expanduser() if key else Path.home() / ".ssh/id_ed25519"
    if not private.is_file():
        raise InputError(
            f"there is no key {private}",
            "signatures.sign_with in site.yaml, or --key; to make one: ssh-keygen -t ed25519",
            page="sign-images",
        )
    return private


def explain_distrust(artifact: Artifact, keys: tuple[str, ...], runner: Runner) -> str:
    """Return why no owner of KEYS (lines of OpenSSH public keys) has signed ARTIFACT's image.

    Empty where one has. The image's bytes are not read: the signature is of the digest that the
    store has written down.
    """
    what = Statement(artifact.sha256, artifact.stack, artifact.lock_sha256)
    lacking = [name for name in ("sha256", "stack", "lock_sha256") if not getattr(what, name)]
    if lacking:  # what is empty is not compared: any signed image would pass
        return f"its record names no {lacking[0].replace('_', ' ')}"
    good, said = verify_by(artifact.image, keys, runner, what)
    return "" if good else said


def _judge_signature(
    text: bytes, signature: bytes, keys: list[str], runner: Runner, what: Statement
) -> tuple[bool, str]:
    """Return whether one of KEYS has signed TEXT, and TEXT states WHAT; and why, in words."""
    good, said = _check_signature(text, signature, keys, runner)
    if not good:
        return False, said
    signed = _parse_statement(text)
    if signed is None:
        return False, "what was signed is not a statement of an image"
    wrong = signed.differs(what)
    if wrong:
        return False, wrong
    adopted = f"; ADOPTED, not built by hpcstack: {signed.adopted}" if signed.adopted else ""
    return True, f"{said}; signed {signed.signed}{adopted}"


def _find_public_key(key: str, runner: Runner) -> Path:
    """Return the file KEY, by default the user's ed25519 key. InputError where it is not one."""
    public = Path(key).expanduser() if key else Path.home() / ".ssh/id_ed25519.pub"
    if not public.is_file():
        raise InputError(
            f"there is no public key {public}", "name the signer's with --key", page="sign-images"
        )
    if runner.output(["ssh-keygen", "-l", "-f", str(public)]).status:
        raise InputError(
            f"{public} is not a public key", "the signer's key ends in .pub", page="sign-images"
        )
    return public


def _read_keys(public: Path) -> list[str]:
    """Return the lines of a file of public keys."""
    lines = read_bytes(public.resolve(), MAX_KEY).decode("utf-8", "replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


def _check_signature(
    text: bytes, signature: bytes, keys: list[str], runner: Runner
) -> tuple[bool, str]:
    """Return whether SIGNATURE is one of TEXT by one of KEYS, and what ssh-keygen says of it.

    ssh-keygen reads copies of our own, so nobody changes them between this check and later ones.
    """
    with tempfile.TemporaryDirectory(prefix="hpcstack-verify-") as name:
        signers = Path(name) / "signers"
        signers.write_text("".join(f"{SIGNER} {line}\n" for line in keys), encoding="utf-8")
        statement = Path(name) / "statement"
        statement.write_bytes(text)
        detached = Path(name) / "signature"
        detached.write_bytes(signature)

        argv = ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", SIGNER]
        argv += ["-n", NAMESPACE, "-s", str(detached)]
        done = runner.output(argv, timeout=60, stdin=statement)
    said = done.tail[-1] if done.tail else f"exit {done.status}"
    if said.startswith("Could not verify"):
        said = "it was not signed with a key that counts here, or was changed afterwards"
    return done.status == 0, said


def _parse_statement(text: bytes) -> Statement | None:
    """Return the statement that TEXT is; None where it is none."""
    try:
        found: dict[str, Any] = parse_untrusted_json(text, MAX_STATEMENT)
        one = Statement(**found)
    except (TypeError, ValueError):
        return None
    is_text = all(isinstance(value, str) for value in asdict(one).values())
    return one if is_text and one.format == FORMAT else None
