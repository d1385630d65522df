"""Signatures: Apptainer's own for a SIF; for a .sqsh a detached one, beside it, by OpenSSH's ssh-keygen.

ssh-keygen (OpenSSH 8.2) is on every login node, and every user has such a key. The namespace says what was signed, so
that a signature of something else never counts: https://man.openbsd.org/ssh-keygen (-Y sign, -Y verify).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hpcstack.errors import AnswerIsNo, InputError
from hpcstack.process import Runner

NAMESPACE = "hpcstack-image"
SIGNER = "hpcstack"


def signature_of(image: Path) -> Path:
    """Where the detached signature of a squashfs lies."""
    return image.with_name(image.name + ".sig")


def sign(image: Path, key: str, runner: Runner) -> Path:
    """IMAGE signed with the private KEY (a file); the file that holds the signature."""
    if image.suffix == ".sif":
        status = runner.attached(["apptainer", "sign", *(["--key", key] if key else []), str(image)])
        if status:
            raise AnswerIsNo(f"apptainer did not sign {image} (exit {status})", "apptainer key newpair makes a key")
        return image
    private = Path(key).expanduser() if key else Path.home() / ".ssh/id_ed25519"
    if not private.is_file():
        raise InputError(f"there is no key {private}", "name one with --key, or make one: ssh-keygen -t ed25519")
    final = signature_of(image)
    # ssh-keygen writes beside what it signs: a link in a folder of its own lets a good signature outlive a failure.
    with tempfile.TemporaryDirectory(prefix=".sign-", dir=image.parent) as name:
        link = Path(name) / image.name
        link.symlink_to(image.resolve())
        status = runner.attached(["ssh-keygen", "-q", "-Y", "sign", "-f", str(private), "-n", NAMESPACE, str(link)])
        if status or not signature_of(link).exists():
            raise AnswerIsNo(f"ssh-keygen did not sign {image} (exit {status})", f"is {private} a private key?")
        signature_of(link).replace(final)
    return final


def verify(image: Path, key: str, runner: Runner) -> tuple[bool, str]:
    """Whether IMAGE's signature is good, by the public KEY (a file), and what the tool said."""
    if image.suffix == ".sif":
        done = runner.output(["apptainer", "verify", *(["--key", key] if key else []), str(image)], timeout=600)
        return done.status == 0, done.tail[-1] if done.tail else ""
    signature = signature_of(image)
    if not signature.is_file():
        return False, "it is not signed"
    public = Path(key).expanduser() if key else Path.home() / ".ssh/id_ed25519.pub"
    if not public.is_file():
        raise InputError(f"there is no public key {public}", "name the signer's with --key")
    with tempfile.NamedTemporaryFile("w", suffix=".signers") as signers:
        signers.write(f"{SIGNER} {public.read_text().strip()}\n")
        signers.flush()
        if runner.output(["ssh-keygen", "-l", "-f", str(public)]).status:
            raise InputError(f"{public} is no public key", "the signer's key ends in .pub")
        argv = ["ssh-keygen", "-Y", "verify", "-f", signers.name, "-I", SIGNER, "-n", NAMESPACE, "-s", str(signature)]
        done = runner.output(argv, timeout=600, stdin=image)
    return done.status == 0, done.tail[-1] if done.tail else f"exit {done.status}"
