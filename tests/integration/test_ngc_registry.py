"""Whole verbs against a registry that behaves as nvcr.io does (tests/support/ngc_registry.py),
whose tokens run out meanwhile.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.image_service import own_service
from support.layers import layout, member, tar
from support.ngc_registry import (
    AUTHN,
    LAYERS,
    REGISTRY,
    TESTBED_HOSTS,
    NgcFront,
    NgcRegistry,
    digest_of,
)
from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.builds, pytest.mark.registry, pytest.mark.squashfs]
NAME = "hpcstack-tests/many-layers:1"
LAYERS_OF_NGC = 67  # as the issue trackers of pip and singularity show NVIDIA's images to have


@pytest.fixture(scope="module")
def front(
    testbed: Testbed, small_base: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NgcFront]:
    """Tokens live three seconds and say ten minutes, so that each process that takes longer shows
    one that has run out. Layers come slowly: an import is under way while that happens.
    """
    layers = [
        tar([member(f"opt/{n}", random.Random(n).randbytes(1 << 20))]) for n in range(LAYERS_OF_NGC)
    ]
    made = layout(tmp_path_factory.mktemp("many"), layers)
    argv = [
        "skopeo",
        "copy",
        "--quiet",
        "--dest-tls-verify=false",
        f"oci:{made}",
        f"docker://{testbed.registry}/{NAME}",
    ]
    subprocess.run(argv, check=True)
    found = NgcFront(
        testbed.folder / "etc/ngc", hosts=dict(TESTBED_HOSTS), upstream=testbed.registry,
        storage=testbed.folder / "state/registry", token_lives_s=3, token_says_s=600, pause_s=0.7,
    )  # fmt: skip
    with found.running():
        yield found


@pytest.fixture(scope="module")
def recipes(testbed: Testbed, small_base: str, front: NgcFront) -> Recipes:
    found = Recipes(testbed, small_base, "ngc-registry")
    mirror = f"{{mirror: '{front.address(REGISTRY)}'}}"
    found.site(
        f"{found.render_site_text}registries: {{nvcr.io: {mirror}, docker.io: {mirror}}}\n"
        f"build: {{engine: builtin, cachedir: {found.folder}/cache}}\n"
    )
    return found


@pytest.fixture(autouse=True)
def without_the_server_that_refuses_everybody(front: NgcFront) -> Iterator[None]:
    front.asked.clear()
    front.stale = 0
    yield
    assert [what for host, what, _ in front.asked if host == AUTHN] == []
    assert not [shown for host, _, shown in front.asked if host == LAYERS and shown], (
        "a token went to another host"
    )


def test_an_import_outlives_its_tokens(recipes: Recipes, front: NgcFront) -> None:
    image = recipes.folder / "many.sqsh"
    done = recipes.run("import", f"nvcr.io/{NAME}", "--output", str(image))
    assert done.returncode == 0, done.stderr
    assert image.stat().st_size > LAYERS_OF_NGC << 20
    assert front.stale > 0, "no token ran out meanwhile"


def test_stacks_are_locked_built_and_compared_with_newer_ones(
    recipes: Recipes, front: NgcFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "token_serves", 2)  # nothing here takes as long as a token lives
    names = [
        recipes.write(str(version), run=f"[{{name: step, command: 'echo {version} >/opt/step'}}]")
        for version in (4, 5, 6)
    ]
    for version, tag in (("7", "24.11-py3"), ("8", "25.10-py3")):
        names.append(recipes.write(version, base=f"{{image: 'nvcr.io/nvidia/pytorch:{tag}'}}"))
    done = recipes.run("lock", "--base-only", "demo-*")
    assert done.returncode == 0, done.stderr
    done = recipes.run("lock", *names[:3])
    assert done.returncode == 0, done.stderr
    assert front.stale > 0, "no token ran out meanwhile"
    for name in names[3:]:
        recipes.testbed.bash('rm "$1"', str(recipes.folder / f"recipes/{name}.yaml"))
    done = recipes.run("build", "--all")
    assert done.returncode == 0, done.stderr
    done = recipes.run("outdated")
    assert done.returncode == 0, done.stderr


def test_a_registry_that_has_too_many_requests_is_waited_for(
    recipes: Recipes, front: NgcFront
) -> None:
    """HTTP 429, as a registry answers whole sites behind one address (Docker Hub does; of nvcr.io
    nothing is sourced).
    """
    name = recipes.write("9", base="{image: 'nvcr.io/nvidia/pytorch:24.11-py3'}")
    front.busy = 3
    done = recipes.run("lock", "--base-only", name)
    assert done.returncode == 0, done.stderr
    assert front.busy == 0, "nobody met it"


def test_a_base_that_is_signed_is_recorded_and_another_is_refused(
    testbed: Testbed, recipes: Recipes, tmp_path: Path
) -> None:
    """NVIDIA's form: by a key, as a tag beside the image (cosign's sha256-DIGEST.sig)."""
    name = recipes.write("10", base="{image: 'nvcr.io/nvidia/pytorch:25.10-py3'}")
    for key in ("nvidia", "other"):
        make_key(tmp_path, key)
        testbed.give_bytes(recipes.folder / f"{key}.pub", (tmp_path / f"{key}.pub").read_bytes())
    sign_in_registry(testbed, "nvidia/pytorch", "25.10-py3", tmp_path / "nvidia")

    def lock_with(key: str) -> subprocess.CompletedProcess[str]:
        entry = f"{{mirror: '{testbed.ngc}', signature_key: '{recipes.folder}/{key}.pub'}}"
        places = "".join(f"{line}: {recipes.folder}/{folder}\n" for line, folder in
                         (("store", "store"), ("lock_dir", "locks"), ("module_root", "modules")))  # fmt: skip
        recipes.site(
            f"{places}registries: {{nvcr.io: {entry}}}\npolicy: {{require_signed_base: true}}\n"
        )
        return recipes.run("lock", "--base-only", "--json", name)

    before = recipes.render_site_text
    try:
        good, bad = lock_with("nvidia"), lock_with("other")
    finally:
        recipes.site(before)
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["base"]["signed_by"].startswith("sha256:")
    assert bad.returncode == 2
    assert "none of them is of the key" in bad.stderr


def make_key(folder: Path, name: str) -> None:
    """A private key, and its public half with .pub."""
    argv = [
        "openssl",
        "genpkey",
        "-algorithm",
        "EC",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-out",
        str(folder / name),
    ]
    subprocess.run(argv, check=True, capture_output=True)
    subprocess.run(
        ["openssl", "pkey", "-in", str(folder / name), "-pubout", "-out", f"{folder / name}.pub"],
        check=True,
    )


def sign_in_registry(testbed: Testbed, repository: str, tag: str, key: Path) -> None:
    """A signature of the image by KEY, beside it in the testbed's registry."""
    listed = [
        "skopeo",
        "inspect",
        "--raw",
        "--tls-verify=false",
        f"docker://{testbed.registry}/{repository}:{tag}",
    ]
    digest = digest_of(subprocess.run(listed, check=True, capture_output=True).stdout)
    own = NgcRegistry(key.parent)
    own.sign(repository, digest, key)
    (kind, manifest) = own.manifests[repository, f"{digest.replace(':', '-')}.sig"]
    layout = key.parent / "signature"
    (layout / "blobs/sha256").mkdir(parents=True)
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    blobs = {**own.blobs, digest_of(manifest): manifest}
    for name, data in blobs.items():
        (layout / "blobs/sha256" / name.removeprefix("sha256:")).write_bytes(data)
    entry = {"mediaType": kind, "digest": digest_of(manifest), "size": len(manifest)}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    target = f"docker://{testbed.registry}/{repository}:{digest.replace(':', '-')}.sig"
    argv = ["skopeo", "copy", "--quiet", "--dest-tls-verify=false", f"oci:{layout}", target]
    subprocess.run(argv, check=True)


def test_the_image_service_outlives_its_tokens(
    testbed: Testbed, front: NgcFront, tmp_path: Path
) -> None:
    named = f"nvcr.io: {{mirror: '{front.address(REGISTRY)}'}}"
    with own_service(tmp_path, named, testbed.ca_bundle) as site:
        argv = [
            sys.executable,
            "-m",
            "hpcstack",
            "--site",
            str(site),
            "cache",
            "get",
            f"nvcr.io/{NAME}",
        ]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (
        done.returncode == 0 and Path(done.stdout.strip()).stat().st_size > LAYERS_OF_NGC << 20
    ), done.stderr
    assert front.stale > 0, "no token ran out meanwhile"


def test_skopeo_understands_it_too(testbed: Testbed, tmp_path: Path) -> None:
    """Another client than ours meets the same registry: what it plays is no dialect of our own."""
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs/ca.crt").write_bytes((testbed.folder / "etc/ngc/ca.pem").read_bytes())
    where = f"docker://{testbed.ngc}/hpcstack-tests/debian-python:12"
    argv = [
        "skopeo",
        "copy",
        "--quiet",
        "--src-cert-dir",
        str(tmp_path / "certs"),
        where,
        f"oci:{tmp_path}/copy",
    ]
    subprocess.run(argv, check=True)
    argv = ["skopeo", "list-tags", "--cert-dir", str(tmp_path / "certs"), where.rpartition(":")[0]]
    tags = json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)
    assert "12" in tags["Tags"]
