"""What ci/ngc-contact has written down, played back as a registry: its challenges, its token's
form, its images' settings.

A file that comes from somebody who can reach nvcr.io makes the stand-ins exact. Put it into
tests/data/ngc-contact/; its name and what it proves go into docs/evidence.md.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.ngc_registry import NgcRegistry


def read_contact(path: Path) -> dict[str, Any]:
    """The document in PATH."""
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    assert found["format"] == 1, f"{path} is of another format"
    return found


def play(contact: dict[str, Any], folder: Path) -> NgcRegistry:
    """A registry that challenges, gives tokens and has images as CONTACT says."""
    exchanges, host = contact["exchanges"], contact["registry"]
    found = NgcRegistry(folder)
    cold = exchanges["cold"]
    repository = cold["asked"].partition("/v2/")[2].partition("/manifests/")[0]
    found.cold_challenge = _template(_header(cold["head"], "WWW-Authenticate"), host, repository)
    if exchanges["stale"]["status"] == 401:
        found.stale_challenge = _template(
            _header(exchanges["stale"]["head"], "WWW-Authenticate"), host, repository
        )
    found.token_reply = json.loads(exchanges["token"]["body"])
    found.token_lives_s = exchanges["token"]["token"].get("lives_s", 600)
    for name, image in contact["images"].items():
        if "config" in image:
            of, _, tag = name.partition(":")
            found.add_image(of, tag, [_layer(image)], config=image["config"])
    return found


def _header(head: str, name: str) -> str:
    match = re.search(rf"(?im)^{name}:[ \t]*(.*?)\r?$", head)
    assert match, f"no {name} in {head}"
    return match[1]


def _template(challenge: str, host: str, repository: str) -> str:
    """CHALLENGE with places in it for hosts and repository, as NgcRegistry fills them."""
    realm = re.search(r'realm="([^"]*)"', challenge)
    assert realm, challenge
    there = urlsplit(realm[1]).netloc
    plain = challenge.replace("{", "{{").replace("}", "}}")
    return plain.replace(there, "{registry}" if there == host else "{authn}").replace(
        repository, "{name}"
    )


def _layer(image: dict[str, Any]) -> bytes:
    """One gzipped tar of the small files and links that were seen in IMAGE."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, text in image["texts"].items():
            member = tarfile.TarInfo(path)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
        for path, target in image["names"].items():
            if target:
                member = tarfile.TarInfo(path)
                member.type, member.linkname = tarfile.SYMTYPE, target
                tar.addfile(member)
    return gzip.compress(out.getvalue(), mtime=0)
