"""Verify signatures of images, as cosign makes them.

They are in a manifest beside the image, under the tag sha256-DIGEST.sig. Each of its layers is a
statement that names the image's digest, with the signature over the statement's bytes in an
annotation. NVIDIA signs NGC's images this way, with a key and without a public log
(NVIDIA/gpu-operator 2432). https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md

Tested in tests/unit/resolve/test_signed_base.py.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstack.core import untrusted
from hpcstack.core.errors import InputError
from hpcstack.core.files import read_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

STATEMENT = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"
KIND = "cosign container image signature"
MOST_STATEMENTS, MAX_STATEMENT, MAX_KEY = 20, 64 << 10, 64 << 10
MAX_SIGNATURE = 4096  # characters in base64: enough for the longest RSA keys
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class CosignStatement:
    """A statement, and somebody's signature over its bytes. Nothing is verified yet."""

    payload: bytes
    signature: bytes


@dataclass(frozen=True)
class Key:
    """A public key that a site trusts, from FILE.

    `fingerprint` is the sha256 of its DER encoding (SubjectPublicKeyInfo).
    """

    file: str
    fingerprint: str
    public: PublicKeyTypes

    def has_signed(self, statement: CosignStatement, digest: str) -> bool:
        """Return whether this key has signed STATEMENT, and it is about the image DIGEST."""
        return self._verify(statement) and _is_about(statement.payload, digest)

    def _verify(self, statement: CosignStatement) -> bool:
        """Return whether the signature of STATEMENT was made with this key."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            if isinstance(self.public, EllipticCurvePublicKey):
                self.public.verify(statement.signature, statement.payload, ECDSA(SHA256()))
            elif isinstance(self.public, RSAPublicKey):
                self.public.verify(statement.signature, statement.payload, PKCS1v15(), SHA256())
            elif isinstance(self.public, Ed25519PublicKey):
                self.public.verify(statement.signature, statement.payload)
            else:
                return False
        except InvalidSignature:
            return False
        return True


def read_key(file: str) -> Key:
    """Read the public key in FILE: PEM, for ECDSA, RSA or Ed25519.

    Raise InputError if the file cannot be read, or holds anything else.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_public_key,
    )

    where = "registries.NAME.signature_key in site.yaml"
    try:
        public = load_pem_public_key(read_text(Path(file).expanduser(), MAX_KEY).encode())
    except OSError as error:
        raise InputError(
            f"the key {file} cannot be read: {error.strerror}",
            f"correct {where}",
            page="sign-images",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(
            f"{file} is not a public key in PEM",
            f"let {where} name a file with what `cosign public-key` prints",
            page="sign-images",
        ) from None
    if not isinstance(public, EllipticCurvePublicKey | RSAPublicKey | Ed25519PublicKey):
        raise InputError(
            f"{file} is a key of a kind that does not sign images",
            f"let {where} name an ECDSA, RSA or Ed25519 key",
            page="sign-images",
        )
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return Key(file, f"sha256:{hashlib.sha256(der).hexdigest()}", public)


def make_signature_tag(digest: str) -> str:
    """Return the tag under which cosign puts the signatures of DIGEST."""
    return f"{digest.replace(':', '-')}.sig"


def list_statements(manifest: dict[str, Any]) -> list[tuple[str, bytes]]:
    """Return (digest of the statement, the signature over it) of each signature in MANIFEST.

    Layers that are not signatures, or not valid ones, are left out.
    """
    out = []
    for layer in list(manifest.get("layers") or [])[:MOST_STATEMENTS]:
        digest = layer.get("digest")
        text = (layer.get("annotations") or {}).get(SIGNATURE)
        if layer.get("mediaType") != STATEMENT:
            continue
        if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
            continue
        if not isinstance(text, str) or len(text) > MAX_SIGNATURE:
            continue
        try:
            out.append((digest, base64.b64decode(text, validate=True)))
        except binascii.Error:
            continue
    return out


def _is_about(payload: bytes, digest: str) -> bool:
    """Return whether the statement PAYLOAD says that it is a signature of the image DIGEST."""
    try:
        critical = untrusted.parse_untrusted_json(payload, MAX_STATEMENT)["critical"]
        return bool(
            critical["type"] == KIND and critical["image"]["docker-manifest-digest"] == digest
        )
    except (ValueError, KeyError, TypeError):
        return False
