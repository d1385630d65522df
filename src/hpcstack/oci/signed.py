"""Whether a key has signed an image, as cosign signs: a manifest beside it, under the tag
sha256-DIGEST.sig.

Each of that manifest's layers is a statement that names the digest, with the signature over the
statement's bytes in an annotation. NVIDIA signs NGC's images so, by a key and without a public log
(NVIDIA/gpu-operator 2432). https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
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
MAX_SIGNATURE = 4096  # characters, of a key of RSA's longest
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class CosignStatement:
    """Bytes that somebody signed, and the signature."""

    payload: bytes
    signature: bytes


@dataclass(frozen=True)
class Key:
    """A public key that a site trusts, from FILE.

    `fingerprint` is sha256 of its DER (SubjectPublicKeyInfo).
    """

    file: str
    fingerprint: str
    public: PublicKeyTypes

    def has_signed(self, statement: CosignStatement, digest: str) -> bool:
        """Whether STATEMENT is this key's, and about the image DIGEST."""
        return self._is_mine(statement) and _is_about(statement.payload, digest)

    def _is_mine(self, statement: CosignStatement) -> bool:
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
    """The public key in FILE, in PEM, of ECDSA, RSA or Ed25519. InputError for anything else."""
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
        raise InputError(f"the key {file} cannot be read: {error.strerror}", where) from None
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(
            f"{file} is no public key in PEM", f"{where}: what `cosign public-key` prints"
        ) from None
    if not isinstance(public, EllipticCurvePublicKey | RSAPublicKey | Ed25519PublicKey):
        raise InputError(f"{file} is a key of a kind that signs no images", where)
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return Key(file, f"sha256:{hashlib.sha256(der).hexdigest()}", public)


def signature_tag(digest: str) -> str:
    """The tag under which cosign puts the signatures of DIGEST."""
    return f"{digest.replace(':', '-')}.sig"


def statements_in(manifest: dict[str, Any]) -> list[tuple[str, bytes]]:
    """(digest of the statement, the signature over it) of each signature that MANIFEST names;
    others are left out.
    """
    out = []
    for layer in list(manifest.get("layers") or [])[:MOST_STATEMENTS]:
        digest, text = layer.get("digest"), (layer.get("annotations") or {}).get(SIGNATURE)
        if (
            layer.get("mediaType") != STATEMENT
            or not isinstance(digest, str)
            or not isinstance(text, str)
        ):
            continue
        if not DIGEST.fullmatch(digest) or len(text) > MAX_SIGNATURE:
            continue
        try:
            out.append((digest, base64.b64decode(text, validate=True)))
        except binascii.Error:
            continue
    return out


def _is_about(payload: bytes, digest: str) -> bool:
    """Whether the statement PAYLOAD says that it is a signature of the image DIGEST."""
    try:
        critical = untrusted.parse_untrusted_json(payload, MAX_STATEMENT)["critical"]
        return bool(
            critical["type"] == KIND and critical["image"]["docker-manifest-digest"] == digest
        )
    except (ValueError, KeyError, TypeError):
        return False
