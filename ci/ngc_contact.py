"""What a registry of NVIDIA's and its images really say, written down: see ci/ngc-contact.

One JSON document, compressed. `exchanges` are the registry's own answers, heads and all: the 401 to
nobody, the token, a manifest, tags, a blob, and the 401 to a token that has run out. `images` are
their manifests and configs, and of their layers the small files that decide how pip, shells and
loaders behave. Values of queries in URLs, cookies and tokens are taken out before anything is kept.
Standard library and curl only; Python 3.9 and newer.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import datetime
import fnmatch
import gzip
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

FORMAT = 1
REGISTRY = "nvcr.io"
IMAGES = tuple(f"nvidia/pytorch:{month}-py3" for month in ("24.11", "25.06", "25.10", "26.07"))
LISTS = (
    "application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.index.v1+json, "
    "application/vnd.docker.distribution.manifest.v2+json, "
    "application/vnd.oci.image.manifest.v1+json"
)
STALE_AFTER_S = 601  # NVIDIA's tokens live for ten minutes, sapcc/keppel's pull request 731 says
MINUTES, LARGEST_MB = 12, 200
TEXTS = (  # small files that are kept whole
    "etc/pip.conf", "etc/pip/constraint.txt", "etc/bash.bashrc", "etc/shinit_v2", "usr/lib/os-release",
    "etc/environment", "etc/apt/sources.list", "etc/apt/sources.list.d/*", "usr/lib/python3*/EXTERNALLY-MANAGED",
    "root/.config/pip/pip.conf", "opt/nvidia/nvidia_entrypoint.sh", "opt/nvidia/entrypoint.d/*", "etc/nccl.conf",
    "etc/ld.so.conf.d/*",
)  # fmt: skip
NAMES = (  # what is only listed: with where a link leads
    "usr/local/cuda*/compat", "usr/local/cuda*/compat/*", "usr/local/cuda", "opt/hpcx/*", "usr/local/mpi",
    "usr/local/mpi/*", "*.dist-info", "*.egg-info", "usr/lib/*/libibverbs*", "usr/lib/*/libnccl*",
    "usr/lib/*/libcudnn.*", "*/conda-meta",
)  # fmt: skip
STATUS = "var/lib/dpkg/status"
CARED_FOR = re.compile(
    r"lib(nccl|cudnn|ibverbs|rdmacm|ibumad|openmpi|ucx)|rdma-core|openmpi|ucx|cuda-compat"
)
MOST_TEXT = 20_000  # characters of one file
QUERY = re.compile(r"([?&][A-Za-z0-9._~-]+=)[^&\s\"'<>]+")
COOKIE = re.compile(r"(?im)^(set-cookie:\s*[^=;\s]+=).*$")


class Answer(NamedTuple):
    """What curl got: the last answer's head, and its body."""

    status: int
    head: str
    body: bytes

    def header(self, name: str) -> str:
        """The value of the header NAME; empty for none."""
        found = re.search(rf"(?im)^{re.escape(name)}:[ \t]*(.*?)\r?$", self.head)
        return found[1] if found else ""


class Contact:
    """One registry, asked by nobody in particular.

    CA: a file of certificates that vouch for it; empty for curl's.
    """

    def __init__(self, registry: str, ca: str = "") -> None:
        self.registry, self.ca = registry, ca
        self.secrets: set[str] = set()

    def ask(
        self,
        url: str,
        *,
        token: str = "",
        accept: str = "",
        head: bool = False,
        into: Path | None = None,
    ) -> Answer:
        """One answer to URL, whatever it is; where it sends on to is not asked.

        INTO: the file for its body.
        """
        lines = [f"url = {_quoted(url)}"]
        lines += [f"header = {_quoted(f'Authorization: Bearer {token}')}"] if token else []
        lines += [f"header = {_quoted(f'Accept: {accept}')}"] if accept else []
        lines += ["head"] if head else []
        lines += [f"cacert = {_quoted(self.ca)}"] if self.ca else []
        with tempfile.TemporaryDirectory() as name:
            heads, body = Path(name, "head"), into or Path(name, "body")
            argv = ["curl", "--config", "-", "--silent", "--show-error", "--retry", "2", "--speed-time", "60",
                    "--speed-limit", "1000", "--dump-header", str(heads), "--output", str(body)]  # fmt: skip
            # What is asked comes by standard input: another user sees no token in the list of
            # processes.
            done = subprocess.run(
                argv, input="\n".join(lines), capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(
                    f"{urlsplit(url).netloc} does not answer: "
                    f"{done.stderr.strip() or done.returncode}"
                )
            text = heads.read_text(errors="replace")
            last = [part for part in re.split(r"\r?\n\r?\n", text) if part.strip()][-1]
            found = re.match(r"HTTP/\S+ ([0-9]{3})", last)
            return Answer(
                int(found[1]) if found else 0,
                last,
                b"" if head or into or not body.exists() else body.read_bytes(),
            )

    def without_secrets(self, text: str) -> str:
        """TEXT without tokens, cookies, and values of queries."""
        for secret in self.secrets:
            text = text.replace(secret, "REDACTED")
        return COOKIE.sub(r"\1REDACTED", QUERY.sub(_keep_scope, text))

    def exchange(self, asked: str, answer: Answer, *, body: int = 2000) -> dict[str, Any]:
        """ANSWER to what was ASKED, as it is kept."""
        text = answer.body[:body].decode("utf-8", "replace")
        return {
            "asked": asked, "status": answer.status, "head": self.without_secrets(answer.head),
            "body": self.without_secrets(text),
        }  # fmt: skip

    def get_token(self, challenge: str, repository: str) -> tuple[str, Answer]:
        """The token that CHALLENGE, a registry's, leads to, and the answer that it came in."""
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        realm = urlsplit(fields.get("realm", ""))
        query = {**dict(parse_qsl(realm.query)), "scope": f"repository:{repository}:pull"}
        if "service" in fields:
            query["service"] = fields["service"]
        answer = self.ask(realm._replace(query=urlencode(query)).geturl())
        try:
            document = json.loads(answer.body)
        except ValueError:
            return "", answer
        token = str(document.get("token") or document.get("access_token") or "")
        secret = ("token", "access_token", "refresh_token")
        self.secrets |= {str(document[name]) for name in secret if document.get(name)}
        return token, answer


def _quoted(text: str) -> str:
    """TEXT as curl's configuration takes it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "") + '"'


def _keep_scope(match: re.Match[str]) -> str:
    """A query's value goes, but for what is no secret and decides: the scope, the service, a page
    of tags.
    """
    name = match[1].strip("?&=")
    return match[0] if name in ("scope", "service", "n", "last", "page") else f"{match[1]}REDACTED"


def describe_token(token: str) -> dict[str, Any]:
    """What a token says of itself, without what it could be used by."""
    parts = token.split(".")
    out: dict[str, Any] = {"characters": len(token), "parts": len(parts)}
    if len(parts) == 3:
        with contextlib.suppress(ValueError):
            claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
            out["claims"] = sorted(claims)
            if {"exp", "iat"} <= set(claims):
                out["lives_s"] = claims["exp"] - claims["iat"]
    return out


def ask_registry(
    contact: Contact, repository: str, tag: str, say: Any
) -> tuple[dict[str, Any], str]:
    """(the exchanges of a pull, a token for REPOSITORY)."""
    top = f"https://{contact.registry}/v2"
    manifest = f"{top}/{repository}/manifests/{tag}"
    out = {"ping": contact.exchange("GET /v2/", contact.ask(f"{top}/"))}
    say("asked without a token")
    cold = contact.ask(manifest, accept=LISTS)
    token, answer = contact.get_token(cold.header("WWW-Authenticate"), repository)
    out["cold"] = contact.exchange(f"GET /v2/{repository}/manifests/{tag}", cold)
    out["token"] = contact.exchange("GET the realm", answer) | {"token": describe_token(token)}
    if not token:
        raise SystemExit(f"{contact.registry} gives nobody a token: {answer.status}")
    say("asked with a token")
    found = contact.ask(manifest, token=token, accept=LISTS)
    out["manifest"] = contact.exchange(f"GET /v2/{repository}/manifests/{tag}", found)
    out["head"] = contact.exchange(f"HEAD /v2/{repository}/manifests/{tag}",
                                   contact.ask(manifest, token=token, accept=LISTS, head=True))  # fmt: skip
    tags = contact.ask(f"{top}/{repository}/tags/list", token=token)
    out["tags"] = contact.exchange(f"GET /v2/{repository}/tags/list", tags, body=100_000)
    return out, token


def ask_image(contact: Contact, repository: str, tag: str, token: str) -> dict[str, Any]:
    """List, manifest and config of REPOSITORY:TAG for linux/amd64, and what a blob's URL leads to."""
    top = f"https://{contact.registry}/v2/{repository}"
    answer = contact.ask(f"{top}/manifests/{tag}", token=token, accept=LISTS)
    if answer.status != 200:
        return {"missing": contact.exchange(f"GET manifests/{tag}", answer)}
    out: dict[str, Any] = {
        "digest": answer.header("Docker-Content-Digest"),
        "list": json.loads(answer.body),
    }
    document = out["list"]
    if "manifests" in document:
        mine = [
            one
            for one in document["manifests"]
            if one.get("platform", {}).get("architecture") == "amd64"
        ]
        answer = contact.ask(f"{top}/manifests/{mine[0]['digest']}", token=token, accept=LISTS)
        document = json.loads(answer.body)
    out["manifest"] = document
    where = f"{top}/blobs/{document['config']['digest']}"
    sent_on = contact.ask(where, token=token, head=True)
    out["blob"] = contact.exchange("HEAD a blob", sent_on)
    with tempfile.TemporaryDirectory() as name:
        out["config"] = json.loads(
            fetch_blob(contact, where, token, Path(name, "config")).read_bytes()
        )
    return out


def fetch_blob(contact: Contact, url: str, token: str, into: Path) -> Path:
    """The bytes of a blob, in the file INTO; the token goes to the registry alone."""
    answer = contact.ask(url, token=token, into=into)
    for _ in range(5):
        if answer.status not in (301, 302, 303, 307, 308):
            break
        answer = contact.ask(answer.header("Location"), into=into)
    if answer.status != 200:
        raise ValueError(f"{urlsplit(url).netloc} answered {answer.status} for a blob")
    return into


class Found:
    """What was seen of an image's tree, layer over layer."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.names: dict[str, str] = {}  # to where a link leads; empty for what is none
        self.packages: dict[str, Any] = {}

    def take(self, path: str, target: str, read: Any) -> None:
        """PATH, a link to TARGET if that is not empty; READ gives its bytes, or None for what is no
        file.
        """
        name = path.rpartition("/")[2]
        if name.startswith(".wh."):
            gone = path.replace(".wh.", "", 1)
            for kept in (self.texts, self.names):
                for one in [one for one in kept if one == gone or one.startswith(f"{gone}/")]:
                    del kept[one]
            return
        if _matches(path, NAMES) or (target and _matches(path, TEXTS)):
            self.names[path] = target
        if path == STATUS:
            self.packages = read_status(read() or b"")
        elif _matches(path, TEXTS) and not target and (data := read()) is not None:
            self.texts[path] = data[:MOST_TEXT].decode("utf-8", "replace")

    def document(self) -> dict[str, Any]:
        return {"texts": self.texts, "names": self.names, "packages": self.packages}


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether PATH is one of PATTERNS; one with a * in front may be at any depth, else as deep as
    it says.
    """
    for one in patterns:
        right_depth = one.startswith("*") or path.count("/") == one.count("/")
        if right_depth and fnmatch.fnmatchcase(path, one):
            return True
    return False


def read_status(data: bytes) -> dict[str, Any]:
    """Of dpkg's status: how many packages there are, which are held, and versions of what NVIDIA
    cares for.
    """
    held, versions, count = [], {}, 0
    for paragraph in data.decode("utf-8", "replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.*)$", paragraph, re.MULTILINE))
        if "Package" not in fields:
            continue
        count += 1
        if fields.get("Status", "").startswith("hold"):
            held.append(fields["Package"])
        if CARED_FOR.match(fields["Package"]):
            versions[fields["Package"]] = (
                f"{fields.get('Version', '')} ({fields.get('Status', '')})"
            )
    return {"count": count, "held": held, "versions": versions}


def look_into_layer(layer: Path, found: Found) -> None:
    """What the compressed tar LAYER says. ValueError for one that cannot be read here (zstd)."""
    try:
        with tarfile.open(layer, mode="r:*") as tar:
            for member in tar:

                def read(
                    member: tarfile.TarInfo = member, tar: tarfile.TarFile = tar
                ) -> bytes | None:
                    opened = tar.extractfile(member) if member.isreg() else None
                    return opened.read() if opened else None

                path = member.name[2:] if member.name.startswith("./") else member.name
                found.take(path.strip("/"), member.linkname if member.issym() else "", read)
    except tarfile.TarError as error:
        raise ValueError(f"no tar that can be read here: {error}") from None


def look_into_layers(
    contact: Contact,
    image: dict[str, Any],
    where: str,
    token_of: Any,
    most: int,
    until: float,
    say: Any,
) -> None:
    """The small files of IMAGE's layers of at most MOST bytes, while there is time; what was left
    out is said.
    """
    found, looked = Found(), []
    layers = image["manifest"]["layers"]
    for number, layer in enumerate(layers, 1):
        about = {"digest": layer["digest"], "size": layer["size"]}
        looked.append(about)
        if layer["size"] > most:
            about["left_out"] = f"larger than {most >> 20} MiB"
        elif time.monotonic() > until:
            about["left_out"] = "no time was left"
        else:
            say(f"layer {number} of {len(layers)}, {layer['size'] / 1e6:.0f} MB")
            with tempfile.TemporaryDirectory() as name:
                try:
                    fetched = fetch_blob(
                        contact, f"{where}/blobs/{layer['digest']}", token_of(), Path(name, "layer")
                    )
                    look_into_layer(fetched, found)
                except ValueError as error:
                    about["left_out"] = str(error)
    image |= {"layers": looked, **found.document()}


def look_into_squashfs(path: str) -> dict[str, Any]:
    """The same of an image that lies here already as a .sqsh."""
    listed = subprocess.run(
        ["unsquashfs", "-lln", path], capture_output=True, text=True, errors="replace", check=True
    )
    found = Found()
    for line in listed.stdout.splitlines():
        row = re.match(r"([a-z-])\S{9} .*? squashfs-root/(.*?)(?: -> (.*))?$", line)
        if not row:
            continue

        def read(kind: str = row[1], name: str = row[2]) -> bytes | None:
            if kind != "-":
                return None
            return subprocess.run(
                ["unsquashfs", "-cat", path, name], capture_output=True, check=True
            ).stdout

        found.take(row[2], row[3] or "", read)
    return {"squashfs": Path(path).name, **found.document()}


def wait_for_stale(
    contact: Contact, url: str, token: str, until: float, exchanges: dict[str, Any]
) -> None:
    """What the registry answers to TOKEN once it has run out."""
    time.sleep(max(0.0, until - time.monotonic()))
    answer = contact.ask(url, token=token, accept=LISTS)
    exchanges["stale"] = contact.exchange(
        "GET the same manifest, with the token that has run out", answer
    )


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ci/ngc-contact", description="What nvcr.io and NVIDIA's images really say."
    )
    parser.add_argument(
        "images", nargs="*", default=list(IMAGES), metavar="REPOSITORY:TAG", help=" ".join(IMAGES)
    )
    parser.add_argument(
        "--sqsh",
        action="append",
        default=[],
        metavar="FILE",
        help="an image that lies here already",
    )
    parser.add_argument(
        "--full", action="store_true", help="layers of any size, however long it takes"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for layers ({MINUTES})")
    parser.add_argument(
        "--stale-after", type=float, default=STALE_AFTER_S, metavar="S", help=f"({STALE_AFTER_S})"
    )
    parser.add_argument("--registry", default=REGISTRY, help=f"({REGISTRY})")
    parser.add_argument("--ca", default="", metavar="FILE", help="certificates that vouch for it")
    parser.add_argument(
        "--output", default=f"ngc-contact-{datetime.date.today()}.json.gz", metavar="FILE"
    )
    chosen = parser.parse_args(words)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s] {text}", file=sys.stderr, flush=True)

    contact = Contact(chosen.registry, chosen.ca)
    first, _, tag = chosen.images[0].partition(":")
    exchanges, token = ask_registry(contact, first, tag, say)
    got = {first: (token, time.monotonic())}
    url = f"https://{contact.registry}/v2/{first}/manifests/{tag}"
    stale_at = time.monotonic() + chosen.stale_after
    waiting = threading.Thread(
        target=wait_for_stale, args=(contact, url, token, stale_at, exchanges), daemon=True
    )
    waiting.start()

    def token_for(repository: str) -> str:
        """A token for REPOSITORY that is not about to run out."""
        kept = got.get(repository)
        if kept is None or time.monotonic() - kept[1] > chosen.stale_after / 3:
            cold = contact.ask(f"https://{contact.registry}/v2/{repository}/tags/list")
            kept = (
                contact.get_token(cold.header("WWW-Authenticate"), repository)[0],
                time.monotonic(),
            )
            got[repository] = kept
        return kept[0]

    until = float("inf") if chosen.full else began + 60 * chosen.minutes
    most = 1 << 40 if chosen.full else LARGEST_MB << 20
    images: dict[str, Any] = {}
    for name in chosen.images:
        repository, _, tag = name.partition(":")
        say(name)
        images[name] = ask_image(contact, repository, tag, token_for(repository))
        if "manifest" in images[name]:
            where = f"https://{contact.registry}/v2/{repository}"
            look_into_layers(
                contact, images[name], where, lambda of=repository: token_for(of), most, until, say
            )
    for path in chosen.sqsh:
        say(path)
        images[Path(path).name] = look_into_squashfs(path)
    while waiting.is_alive():
        say(f"waiting for the token to run out: {max(0, stale_at - time.monotonic()):.0f} s")
        waiting.join(10)
    document = {"format": FORMAT, "made": f"{datetime.date.today()}", "registry": chosen.registry,
                "exchanges": exchanges, "images": images}  # fmt: skip
    text = contact.without_secrets(json.dumps(document, indent=1, ensure_ascii=False))
    with gzip.open(chosen.output, "wt", encoding="utf-8") as file:
        file.write(text)
    say(
        f"written: {chosen.output}. No token, cookie or signature is in it; look it through "
        f"(zcat) and send it"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
