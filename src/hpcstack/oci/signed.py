"""Verify signatures of images, as cosign makes them, and make such ones.

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
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstack.core import untrusted
from hpcstack.core.errors import InputError
from hpcstack.core.files import read_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey as ECPrivateKey,
    )
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey as ECPublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

    PublicKey = ECPublicKey | RSAPublicKey | Ed25519PublicKey

STATEMENT = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"
KIND = "cosign container image signature"
MOST_STATEMENTS, MAX_STATEMENT, MAX_KEY = 20, 64 << 10, 64 << 10
IN_TOTO = "application/vnd.in-toto+json"
MAX_ENVELOPE = 16 << 20  # bytes
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

    def open_envelope(self, envelope: bytes) -> bytes | None:
        """Return the statement in ENVELOPE, as `seal_statement` makes one, if this key signed it.

        None for any other text.
        """
        try:
            found = untrusted.parse_untrusted_json(envelope, MAX_ENVELOPE)
            payload = base64.b64decode(found["payload"], validate=True)
            signatures = [
                base64.b64decode(one["sig"], validate=True)
                for one in found["signatures"][:MOST_STATEMENTS]
            ]
        except (ValueError, KeyError, TypeError):
            return None
        if found.get("payloadType") != IN_TOTO:
            return None
        signed = make_signed_form(payload)
        if any(self._verify(CosignStatement(signed, one)) for one in signatures):
            return payload
        return None

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


NAMED_BY_SITE = "registries.NAME.signature_key in site.yaml"


def read_key(file: str, where: str = NAMED_BY_SITE) -> Key:
    """Read the public key in FILE: PEM, for ECDSA, RSA or Ed25519. WHERE names the file.

    Raise InputError if the file cannot be read, or holds anything else.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

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
    return make_key(file, public)


def make_key(file: str, public: PublicKey) -> Key:
    """Return PUBLIC, which FILE holds, as a key that verifies."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return Key(file, f"sha256:{hashlib.sha256(der).hexdigest()}", public)


@dataclass(frozen=True)
class PrivateKey:
    """A private key that images are signed with."""

    private: ECPrivateKey | RSAPrivateKey | Ed25519PrivateKey

    @property
    def public(self) -> Key:
        """The public half, which verifies what this key signs."""
        return make_key("", self.private.public_key())

    def sign(self, payload: bytes) -> bytes:
        """Return the signature over PAYLOAD, as cosign makes it with such a key."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.hashes import SHA256

        if isinstance(self.private, EllipticCurvePrivateKey):
            return self.private.sign(payload, ECDSA(SHA256()))
        if isinstance(self.private, RSAPrivateKey):
            return self.private.sign(payload, PKCS1v15(), SHA256())
        return self.private.sign(payload)

    def sign_image(self, name: str, digest: str) -> CosignStatement:
        """Return a signed statement that the image DIGEST is REGISTRY/REPOSITORY, which NAME is."""
        critical = {
            "identity": {"docker-reference": name},
            "image": {"docker-manifest-digest": digest},
            "type": KIND,
        }
        document = {"critical": critical, "optional": None}
        payload = json.dumps(document, separators=(",", ":")).encode()
        return CosignStatement(payload, self.sign(payload))

    def seal_statement(self, statement: bytes) -> bytes:
        """Return an in-toto STATEMENT in an envelope with the signature over it, as JSON.

        https://github.com/secure-systems-lab/dsse
        """
        signature = self.sign(make_signed_form(statement))
        envelope = {
            "payloadType": IN_TOTO,
            "payload": base64.b64encode(statement).decode(),
            "signatures": [{"keyid": "", "sig": base64.b64encode(signature).decode()}],
        }
        return json.dumps(envelope, separators=(",", ":")).encode()


def make_signed_form(statement: bytes) -> bytes:
    """Return what is signed of an in-toto STATEMENT: DSSE's pre-authentication encoding."""
    kind = IN_TOTO.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(statement), statement)


def read_private_key(file: str, ask_passphrase: Callable[[], str]) -> PrivateKey:
    """Read the private key in FILE: PEM, or as ssh-keygen writes one; ECDSA, RSA or Ed25519.

    ASK_PASSPHRASE is called for one that is encrypted. Raise InputError if the file cannot be read,
    or holds anything else.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import (
        load_pem_private_key,
        load_ssh_private_key,
    )

    try:
        text = read_text(Path(file).expanduser(), MAX_KEY).encode()
    except OSError as error:
        raise InputError(
            f"the key {file} cannot be read: {error.strerror}",
            "name a private key of yours: --key FILE",
            page="push-an-image",
        ) from None

    load = load_ssh_private_key if b"OPENSSH PRIVATE KEY" in text else load_pem_private_key
    try:
        try:
            private = load(text, None)
        except TypeError:  # it is encrypted
            private = load(text, ask_passphrase().encode())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        hint = "openssl ecparam -name prime256v1 -genkey | openssl pkcs8 -topk8 makes one"
        if b"SIGSTORE PRIVATE KEY" in text:
            hint = f"cosign's own format is not read: {hint}; cosign verifies what it signs"
        raise InputError(
            f"{file} is not a private key that can be used: {str(error)[:100]}",
            hint,
            page="push-an-image",
        ) from None
    if not isinstance(private, EllipticCurvePrivateKey | RSAPrivateKey | Ed25519PrivateKey):
        raise InputError(
            f"{file} is a key of a kind that does not sign images",
            "name an ECDSA, RSA or Ed25519 key",
            page="push-an-image",
        )
    return PrivateKey(private)


def make_signature_layer(statement: CosignStatement) -> dict[str, str]:
    """Return the annotations of the layer that holds STATEMENT's payload."""
    return {SIGNATURE: base64.b64encode(statement.signature).decode()}


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
