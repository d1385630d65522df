"""Images pushed to a real registry, and what other programs make of them: podman, skopeo, oras and
cosign; and back again, on another site.
"""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.index import add_wheel, serve_index
from support.recipes import Recipes
from support.testbed import CONTROL, Testbed
from support.trees import listing

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.builds,
    pytest.mark.registry,
    pytest.mark.squashfs,
    pytest.mark.timeout(900),
]
MANIFEST = (
    "application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.v2+json"
)
# What a step can do to a base: hard links, a file that goes, a folder with a mode of its own.
STEP = (
    "cd /opt && echo x >a && ln a b && rm /etc/debian_version && mkdir -p sub/deep && chmod 2750 sub"
    " && rm -rf /usr/share/doc/bash && chmod 700 /usr/local/bin"
)


@dataclass(frozen=True)
class Pushing:
    """A stack that is built, and the name under which it is pushed."""

    recipes: Recipes
    image: str  # of the squashfs
    name: str  # REGISTRY/NAME

    def push(self, *words: str, name: str = "") -> dict[str, Any]:
        key = str(self.recipes.folder / "key.pem")
        done = self.recipes.run("push", "demo-1", name or self.name, "--key", key, "--json", *words)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def verify(self, key: str = "key.pub") -> subprocess.CompletedProcess[str]:
        named = str(self.recipes.folder / key)
        return self.recipes.run("verify", "--from", f"{self.name}:1", "--key", named, "--json")


def make_keys(recipes: Recipes, name: str) -> None:
    recipes.testbed.bash(
        'cd "$1" && openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt '
        '-out "$2.pem" && openssl pkey -in "$2.pem" -pubout -out "$2.pub"',
        str(recipes.folder), name,
    )  # fmt: skip


def render_registries(testbed: Testbed, *more: str) -> str:
    """The registries of a site that pushes where its bases are; and MORE, by plain http."""
    rows = [f"  nvcr.io: {{mirror: '{testbed.registry}', plain_http: true}}\n"]
    rows += [f"  '{one}': {{plain_http: true}}\n" for one in (testbed.registry, *more)]
    return "registries:\n" + "".join(rows)


@pytest.fixture(scope="module")
def pushing(
    testbed: Testbed, small_base: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pushing]:
    recipes = Recipes(testbed, small_base, "pushing")
    index = tmp_path_factory.mktemp("index")
    add_wheel(index, "alpha", "1.0", {"alpha.py": "answer = 42\n"})
    recipes.write("1", packages="{pip: [alpha]}", labels="{org.example.contact: us}",
                  environment="{ANSWER: 'forty two'}",
                  run=f"[{{name: changes, command: {json.dumps(STEP)}}}]")  # fmt: skip
    make_keys(recipes, "key")
    make_keys(recipes, "other")
    with serve_index(index) as url:
        recipes.site(
            f"{recipes.render_site_text}{render_registries(testbed)}"
            f"build: {{pip: {{index_url: '{url}'}}}}\n"
        )
        done = recipes.run("build", "demo-1", "--json")
        assert done.returncode == 0, done.stderr
    found = Pushing(recipes, json.loads(done.stdout)["image"], f"{testbed.registry}/pushed/demo")
    found.push()
    yield found


def ask(testbed: Testbed, path: str, kind: str = MANIFEST) -> Any:
    request = urllib.request.Request(
        f"http://{testbed.registry}/v2/{path}", headers={"Accept": kind}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_the_bases_layers_are_its_own_and_not_sent(testbed: Testbed, pushing: Pushing) -> None:
    name = f"{testbed.registry}/pushed/anew-{time.monotonic_ns()}"
    done = pushing.push(name=name)
    assert done["uploaded_base"] == 0
    assert done["sent"] < 1.1 * done["delta_bytes"] + 300_000, done  # what is attached, besides
    manifest = ask(testbed, f"{name.partition('/')[2]}/manifests/1")
    base = ask(testbed, "hpcstack-tests/debian-python/manifests/12")
    of_base = [one["digest"] for one in base["layers"]]
    assert [one["digest"] for one in manifest["layers"]][:-1] == of_base

    again = pushing.push(name=name)
    assert again["digest"] == done["digest"]
    assert again["sent"] < 20_000, "a signature is another each time; nothing else is sent again"


# podman keeps a process for the namespace of a user, which must be this test's own, and end with it.
BY_PODMAN = """\
state=$(mktemp -d /tmp/p-XXXX)
export XDG_RUNTIME_DIR=$state/run
mkdir -m 700 "$XDG_RUNTIME_DIR"
podman --root "$state/r" --runroot "$state/x" --cgroup-manager=cgroupfs \\
    run --rm --network=none --tls-verify=false "$1" python3 -c "$2"
status=$?
podman unshare rm -rf "$state/r" "$state/x"
kill -KILL "$(cat "$XDG_RUNTIME_DIR/libpod/tmp/pause.pid")"
rm -rf "$state"
exit $status
"""


def run_by_podman(testbed: Testbed, name: str) -> str:
    """What the image NAME:1 says of the package and the variable that the stack adds."""
    program = "import alpha, os; print(alpha.answer, os.environ['ANSWER'])"
    done = testbed.bash(BY_PODMAN, f"{name}:1", program)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.podman
@pytest.mark.soak(
    "another reader of what the layer holds",
    kept="tests/unit/oci/test_delta_layer.py::test_it_makes_the_image_of_its_base",
)
def test_podman_has_the_squashfs_file_by_file(
    testbed: Testbed, pushing: Pushing, tmp_path: Path
) -> None:
    state = Path(tempfile.mkdtemp(prefix="podman-"))  # podman takes no long path for it
    podman = ["podman", "--root", str(tmp_path / "root"), "--runroot", str(state)]

    def run(*argv: str) -> str:
        done = subprocess.run([*podman, *argv], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    try:
        image = run("pull", "-q", "--tls-verify=false", f"{pushing.name}:1")
        container = run("create", image, "true")
        run("export", "-o", str(tmp_path / "podman.tar"), container)
        about = json.loads(run("inspect", image))[0]["Config"]
    finally:
        subprocess.run([*podman, "rmi", "--all", "--force"], capture_output=True, check=False)
        shutil.rmtree(state, ignore_errors=True)
    assert run_by_podman(testbed, pushing.name) == "42 forty two"
    assert about["Labels"]["org.example.contact"] == "us"

    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    tar = ["tar", "-xpf", str(tmp_path / "podman.tar"), "-C", str(theirs), "--xattrs"]
    subprocess.run([*tar, "--xattrs-include=*"], check=True)
    subprocess.run(["unsquashfs", "-q", "-n", "-d", str(ours), pushing.image], check=True,
                   capture_output=True)  # fmt: skip
    assert compared(listing(theirs)) == compared(listing(ours))
    shutil.rmtree(tmp_path, ignore_errors=True)


def compared(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """FOUND without owners, which are root's in the squashfs, and without times of folders."""
    out = {}
    for path, (mode, _, _, made, size, content, device, xattrs, same) in found.items():
        is_folder = stat.S_ISDIR(int(mode, 8))
        out[path] = [mode, 0 if is_folder else made, size, content, device, xattrs, same]
    return out


@pytest.mark.enroot
@pytest.mark.pyxis
def test_enroot_imports_it_by_its_name(testbed: Testbed, pushing: Pushing) -> None:
    """Enroot asks a registry whether it may before it says which formats it takes.

    The nodes, which have a network of their own, reach no registry: Pyxis runs the file.
    """
    name = f"{testbed.registry}#{pushing.name.partition('/')[2]}:1"
    done = testbed.bash(
        'file=$(mktemp -u ~/pushed-XXXX.sqsh); '
        'ENROOT_ALLOW_HTTP=yes enroot import -o "$file" "docker://$1" && '
        'enroot start "$file" python3 -c "$2" && srun -N1 --container-image="$file" python3 -c "$2"; '
        'status=$?; rm -f "$file"; exit $status',
        name, "import alpha, os; print(alpha.answer, os.environ['ANSWER'])",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["42 forty two"] * 2


def test_what_is_attached_is_checked(testbed: Testbed, pushing: Pushing) -> None:
    done = pushing.verify()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["stack"], found["notes"]) == ("demo-1", [])
    assert found["here"] == "the store has the very image that was pushed"

    done = pushing.verify("other.pub")
    assert done.returncode == 1
    assert "is not signed by the key" in done.stderr

    # Without a key nobody vouches for it, and that must be asked for.
    recipes = pushing.recipes
    done = recipes.run("verify", "--from", f"{pushing.name}:1")
    assert done.returncode == 2
    assert "--key FILE; or --unsigned" in done.stderr
    done = recipes.run("verify", "--from", f"{pushing.name}:1", "--unsigned", "--json")
    assert done.returncode == 0, done.stderr
    assert "NOT signed: nobody vouches for it" in json.loads(done.stdout)["notes"]
    key = str(recipes.folder / "key.pub")
    done = recipes.run("verify", "--from", f"{pushing.name}:1", "--key", key, "--stack", "demo-2")
    assert done.returncode == 1
    assert "is an image of demo-1, not of demo-2" in done.stderr


def test_what_others_attach_does_no_harm(testbed: Testbed, pushing: Pushing) -> None:
    """A scanner attaches an SBOM of its own, and the next push leaves it where it is."""
    name = f"{testbed.registry}/pushed/scanned-{time.monotonic_ns()}"
    pushed = pushing.push(name=name)
    tag = pushed["digest"].replace(":", "-")
    foreign = json.loads(make_referrer(testbed, name, pushed, b"{}"))
    path = f"{name.partition('/')[2]}/manifests/{tag}"
    index = ask(testbed, path, "application/vnd.oci.image.index.v1+json")
    assert foreign in index["manifests"]
    assert Pushing(pushing.recipes, pushing.image, name).verify().returncode == 0

    pushing.push(name=name)
    index = ask(testbed, path, "application/vnd.oci.image.index.v1+json")
    assert len(index["manifests"]) == len(pushed["attached"]) + 1
    assert Pushing(pushing.recipes, pushing.image, name).verify().returncode == 0


def test_what_somebody_has_replaced_is_refused(testbed: Testbed, pushing: Pushing) -> None:
    """Whoever may push can attach another SBOM: the provenance, which is signed, says which it was."""
    name = f"{testbed.registry}/pushed/tampered"
    pushed = pushing.push(name=name)
    forged = {**json.loads(make_referrer(testbed, name, pushed, b"{}"))}
    put(
        testbed,
        name,
        pushed["digest"].replace(":", "-"),
        replace_in_index(testbed, name, pushed, forged),
    )

    done = Pushing(pushing.recipes, pushing.image, name).verify()
    assert done.returncode == 1
    assert "no sbom that is attached to" in done.stderr
    assert "is the one that its provenance names" in done.stderr


def put(testbed: Testbed, name: str, reference: str, content: bytes,
        kind: str = "application/vnd.oci.image.index.v1+json") -> None:  # fmt: skip
    path = name.partition("/")[2]
    request = urllib.request.Request(
        f"http://{testbed.registry}/v2/{path}/manifests/{reference}", content,
        {"Content-Type": kind}, method="PUT",
    )  # fmt: skip
    urllib.request.urlopen(request, timeout=30).close()


def make_referrer(testbed: Testbed, name: str, pushed: dict[str, Any], content: bytes) -> str:
    """An SBOM of CONTENT, attached as anybody can; its descriptor as JSON."""
    from hpcstack.oci.push import Descriptor, PushRegistry
    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site

    values: dict[str, Any] = {"store": "/s", "lock_dir": "/l", "module_root": "/m"}
    site = Site.model_validate({**values, "registries": {testbed.registry: {"plain_http": True}}})
    registry = PushRegistry(site, Base.model_validate({"image": f"{name}:1"}))
    kind = "application/vnd.cyclonedx+json"
    subject = Descriptor("application/vnd.oci.image.manifest.v1+json", pushed["digest"], 1)
    return json.dumps(registry.attach(subject, kind, content, "sbom.json", kind).as_dict())


def replace_in_index(
    testbed: Testbed, name: str, pushed: dict[str, Any], forged: dict[str, Any]
) -> bytes:
    path = f"{name.partition('/')[2]}/manifests/{pushed['digest'].replace(':', '-')}"
    index = ask(testbed, path, "application/vnd.oci.image.index.v1+json")
    kept = [one for one in index["manifests"] if one["artifactType"] != forged["artifactType"]]
    return json.dumps({**index, "manifests": [*kept, forged]}).encode()


@pytest.fixture
def empty_registry(tmp_path: Path) -> Iterator[str]:
    """A docker-registry that has nothing: HOST:PORT."""
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    config = tmp_path / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/data}}}}\n"
        f"http: {{addr: '{address}'}}\n"
    )
    process = subprocess.Popen(["docker-registry", "serve", str(config)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://{address}/v2/", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


def test_where_the_base_is_not_its_bytes_and_licence_are_said_first(
    testbed: Testbed, pushing: Pushing, empty_registry: str
) -> None:
    recipes = pushing.recipes
    before = recipes.render_site_text
    recipes.site(
        before.replace(
            "registries:\n", f"registries:\n  '{empty_registry}': {{plain_http: true}}\n"
        )
    )
    try:
        done = recipes.run("push", "demo-1", f"{empty_registry}/demo", "--unsigned")
        assert done.returncode == 1, done.stdout
        assert "does not have 1 of 1 layers of nvcr.io/hpcstack-tests/debian-python" in done.stderr
        assert "licence" in done.stderr
        assert "--with-base" in done.stderr
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://{empty_registry}/v2/demo/manifests/1", timeout=30)

        done = recipes.run(
            "push", "demo-1", f"{empty_registry}/demo", "--unsigned", "--with-base", "--json"
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["uploaded_base"] > 1_000_000
        assert not found["signed"]
    finally:
        recipes.site(before)


@pytest.fixture(scope="module")
def push_seconds(testbed: Testbed, pushing: Pushing) -> float:
    """How long a push of a new name takes."""
    began = time.monotonic()
    pushing.push(name=f"{testbed.registry}/pushed/timed-{time.monotonic_ns()}")
    return time.monotonic() - began


@pytest.mark.soak("another moment of seven", but=lambda percent: percent in (40, 75, 95))
@pytest.mark.parametrize("percent", [10, 40, 55, 65, 75, 85, 95])
def test_a_push_that_is_killed_leaves_nothing_visible(
    testbed: Testbed, pushing: Pushing, push_seconds: float, percent: int
) -> None:
    """At whatever moment: a tag that is there means an image with all its evidence, signed."""
    recipes = pushing.recipes
    name = f"{testbed.registry}/pushed/killed-{time.monotonic_ns()}-{percent}"
    places = ("--site", f"{recipes.folder}/site.yaml", "--recipes", f"{recipes.folder}/recipes")
    argv = ("hpcstack", *places, "push", "demo-1", name, "--key", f"{recipes.folder}/key.pem")
    process = subprocess.Popen(
        [str(CONTROL), "exec", "env", f"XDG_STATE_HOME={recipes.folder}/state", *argv],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(push_seconds * percent / 100)
    subprocess.run(["pkill", "-KILL", "-f", f"hpcstack.* push demo-1 {name} "], check=False)
    process.kill()
    process.wait()

    try:
        ask(testbed, f"{name.partition('/')[2]}/manifests/1")
    except urllib.error.HTTPError as error:
        assert error.code == 404
    else:
        assert percent > 10, "nothing is there before Python has started"
        done = Pushing(recipes, pushing.image, name).verify()
        assert done.returncode == 0, done.stderr
    assert pushing.push(name=name)["signed"]
    assert Pushing(recipes, pushing.image, name).verify().returncode == 0


def test_another_site_pulls_it(testbed: Testbed, pushing: Pushing) -> None:
    """The recipes come by git; the image comes with its lock and its proof, and is published there."""
    other = Recipes(testbed, pushing.recipes.base, "pulling")
    other.site(f"{other.render_site_text}{render_registries(testbed)}")
    key = str(pushing.recipes.folder / "key.pub")
    done = other.run("pull", f"{pushing.name}:1", "--key", key)
    assert done.returncode == 2
    assert "there is no stack 'demo-1'" in done.stderr

    testbed.bash(
        'cp -r "$1"/. "$2"/', str(pushing.recipes.folder / "recipes"), str(other.folder / "recipes")
    )
    done = other.run(
        "pull", f"{pushing.name}:1", "--key", str(pushing.recipes.folder / "other.pub")
    )
    assert done.returncode == 1
    done = other.run("pull", f"{pushing.name}:1", "--key", key, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["stack"], found["pip"]["alpha"], found["engine"]) == ("demo-1", "1.0", "pulled")

    again = json.loads(other.run("pull", f"{pushing.name}:1", "--key", key, "--json").stdout)
    assert again["image"] == found["image"]
    done = other.run("publish", "demo-1")
    assert done.returncode == 0, done.stderr
    parity = other.run("verify", "--parity", found["image"], pushing.image)
    assert parity.returncode == 0, parity.stdout

    testbed.bash('sed -i "s/a test/another test/" "$1"', str(other.folder / "recipes/demo-1.yaml"))
    done = other.run("pull", f"{pushing.name}:1", "--key", key)
    assert done.returncode == 2
    assert "was made of another recipe" in done.stderr


@pytest.mark.oras
def test_oras_finds_what_is_attached(pushing: Pushing, tmp_path: Path) -> None:
    argv = ["oras", "discover", "--plain-http", "--format", "json", f"{pushing.name}:1"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    kinds = {one["artifactType"]: one["digest"] for one in json.loads(done.stdout)["referrers"]}
    assert {"application/vnd.cyclonedx+json", "application/vnd.in-toto+json"} <= set(kinds)
    named = f"{pushing.name}@{kinds['application/vnd.cyclonedx+json']}"
    subprocess.run(
        ["oras", "pull", "--plain-http", "-o", str(tmp_path), named],
        check=True,
        capture_output=True,
    )
    sbom = json.loads((tmp_path / "sbom.json").read_text())
    assert sbom["bomFormat"] == "CycloneDX"


@pytest.mark.cosign
def test_cosign_verifies_image_and_provenance(
    testbed: Testbed, pushing: Pushing, tmp_path: Path
) -> None:
    for name in ("key", "other"):
        text = testbed.run("cat", str(pushing.recipes.folder / f"{name}.pub"), check=True).stdout
        (tmp_path / f"{name}.pub").write_text(text)

    def verify(key: str, *words: str) -> int:
        plain = [
            "--insecure-ignore-tlog=true",
            "--allow-http-registry",
            "--allow-insecure-registry",
        ]
        argv = [
            "cosign",
            *words,
            "--key",
            str(tmp_path / f"{key}.pub"),
            *plain,
            f"{pushing.name}:1",
        ]
        return subprocess.run(argv, capture_output=True, check=False).returncode

    for words in (("verify",), ("verify-attestation", "--type", "slsaprovenance1")):
        assert verify("key", *words) == 0
        assert verify("other", *words) != 0
