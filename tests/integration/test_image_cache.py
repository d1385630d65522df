"""One import for all: the testbed's image service, a registry that wants a login, and users of
several rights.

The virtual nodes share one service and one disk: what waits on several nodes waits here in several
processes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.files import remove_tree
from support.image_service import own_service
from support.layers import layout, member, tar
from support.private_registry import PrivateRegistry
from support.testbed import Testbed
from support.token_registry import TokenRegistry

pytestmark = [pytest.mark.testbed, pytest.mark.registry, pytest.mark.squashfs]
COUNT = int(os.environ.get("HPCSTACK_FAULTS", "1"))
TESTBED = os.environ.get("HPCSTACK_TESTBED", "/opt/hpcstack-testbed")
NAME = "nvidia/pytorch:24.11-py3"
OPEN = "docker://nvcr.io#nvidia/pytorch:24.11-py3"
SMALL = "hpcstack-tests/debian-tiny:12"


@dataclass
class User:
    """Who has no account: a number, a home, and a login or none."""

    number: int
    home: Path
    testbed: Testbed
    password: str = ""

    def __post_init__(self) -> None:
        folder = self.home / ".config/enroot"
        folder.mkdir(parents=True)
        if self.password:
            self.write_login(self.password)
        for path in (self.home, *self.home.rglob("*")):
            os.chown(path, self.number, self.number)
            path.chmod(0o700 if path.is_dir() else 0o600)

    def write_login(self, password: str) -> None:
        host = self.address.partition(":")[0]
        line = f"machine {host} login user{self.number} password {password}\n"
        (self.home / ".config/enroot/.credentials").write_text(line)

    @property
    def address(self) -> str:
        return PrivateRegistry.address(self.testbed.folder)

    def start(self, *argv: str, **variables: str) -> subprocess.Popen[str]:
        group = (self.testbed.folder / "etc/site.yaml").stat().st_gid
        return subprocess.Popen(
            ["setpriv", f"--reuid={self.number}", f"--regid={group}", "--clear-groups", "env", "-i", f"HOME={self.home}",
             "PATH=/usr/bin:/bin", f"HPCSTACK_SITE={self.testbed.folder}/etc/site.yaml",
             *(f"{name}={value}" for name, value in variables.items()), *argv],
            cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def get(self, image: str = "", **variables: str) -> subprocess.Popen[str]:
        return self.start(
            str(self.testbed.folder / "venv/bin/hpcstack"),
            "cache",
            "get",
            image or f"docker://{self.address}/{NAME}",
            **variables,
        )

    def got(self, image: str = "", **variables: str) -> tuple[int, str, str]:
        return ended(self.get(image, **variables))

    def reads(self, path: str) -> bool:
        return ended(self.start("head", "-c", "4", path))[0] == 0


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """(exit code, the path, what was said)."""
    out, said = process.communicate(timeout=280)
    return process.returncode, out.strip(), said


@pytest.fixture
def registry(testbed: Testbed, tmp_path: Path) -> Iterator[PrivateRegistry]:
    logins = {"user61001": "one", "user61002": "two"}
    address = PrivateRegistry.address(testbed.folder)
    found = PrivateRegistry(
        tmp_path, testbed.folder / "state/registry", int(address.rpartition(":")[2]), logins
    ).start()
    empty(testbed)
    yield found
    found.stop()
    empty(testbed)


@pytest.fixture
def users(testbed: Testbed) -> Iterator[tuple[User, User, User]]:
    """One and two have logins; three has none. Their homes are not in pytest's folder: it is root's
    alone, and each session that begins makes it so again.
    """
    with tempfile.TemporaryDirectory(dir=testbed.folder) as name:
        top = Path(name)
        top.chmod(0o755)
        words = {61001: "one", 61002: "two", 61003: ""}
        one, two, three = (
            User(number, top / f"home{number}", testbed, word) for number, word in words.items()
        )
        yield one, two, three


def cache(testbed: Testbed) -> Path:
    return testbed.folder / "images"


def empty(testbed: Testbed) -> None:
    kill_importers()
    for folder in cache(testbed).iterdir():
        for one in folder.iterdir():
            remove_tree(one) if one.is_dir() else one.unlink(missing_ok=True)


def importers() -> list[int]:
    """The processes of the service that serve somebody: its children."""
    found = subprocess.run(
        ["pgrep", "-f", f"{TESTBED}/venv/bin/hpcstack cache serve"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    every = [int(word) for word in found.split()]
    return [one for one in every if parent(one) in every]


def parent(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def kill_importers() -> None:
    for one in importers():
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue


def layers(registry: PrivateRegistry) -> int:
    """Bytes of the image in its registry: what one import has to fetch."""
    tag = (
        registry.storage
        / "docker/registry/v2/repositories/nvidia/pytorch/_manifests/tags/24.11-py3/current/link"
    )
    found = blob(registry, tag.read_text())
    if "manifests" in found:
        mine = next(one for one in found["manifests"] if one["platform"]["architecture"] == "amd64")
        found = blob(registry, mine["digest"])
    return sum(int(layer["size"]) for layer in found["layers"]) + int(found["config"]["size"])


def blob(registry: PrivateRegistry, digest: str) -> dict[str, Any]:
    name = digest.strip().removeprefix("sha256:")
    text = (
        registry.storage / f"docker/registry/v2/blobs/sha256/{name[:2]}/{name}/data"
    ).read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def test_all_nodes_of_a_step_get_one_import(
    testbed: Testbed, registry: PrivateRegistry, users: tuple[User, User, User]
) -> None:
    one, two, three = users
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "8"}
    given = [ended(process) for process in [one.get(**step) for _ in range(8)]]
    assert {code for code, _, _ in given} == {0}, given
    (path,) = {path for _, path, _ in given}
    assert registry.blob_bytes() == layers(registry), "the bytes of one image"
    assert registry.manifests() <= 3, (
        "one asks what the tag means, and the importer reads index and manifest"
    )
    assert any("waiting for the import by" in said for _, _, said in given)
    assert one.reads(path)
    assert not three.reads(path)

    registry.forget()
    code, again, said = two.got()
    assert (code, again) == (0, path), said
    assert two.reads(path)
    assert registry.blob_bytes() == 0
    assert registry.manifests() == 1
    code, _, said = three.got()
    assert code == 5
    assert "refuses" in said
    assert "TIP" in said
    assert not three.reads(path)
    assert registry.blob_bytes() == 0

    registry.forget()
    given = [
        ended(process) for process in [one.get(**{**step, "SLURM_STEP_ID": "1"}) for _ in range(4)]
    ]
    assert {(code, path) for code, path, _ in given} == {(0, path)}
    assert registry.manifests() == 1 and registry.blob_bytes() == 0, (
        "a step of several nodes asks once"
    )


def test_who_may_not_read_an_image_gets_no_import_either(
    testbed: Testbed, registry: PrivateRegistry, users: tuple[User, User, User]
) -> None:
    code, _, said = users[2].got()
    assert code == 5
    assert "refuses" in said
    assert not list((cache(testbed) / "images").iterdir())
    users[1].write_login("wrong")
    assert users[1].got()[0] == 5
    assert registry.blob_bytes() == 0


def test_an_image_for_everybody_is_for_everybody(
    testbed: Testbed, registry: PrivateRegistry, users: tuple[User, User, User]
) -> None:
    code, path, said = users[2].got(OPEN)
    assert code == 0 and users[2].reads(path) and users[0].reads(path), said


def test_what_a_user_could_serve_himself_is_not_shared(
    testbed: Testbed, users: tuple[User, User, User]
) -> None:
    for image in (
        "docker://localhost:5001/a/b:1",
        "docker://127.0.0.1:9/a/b:1",
        "docker://node1:5000/a:1",
    ):
        code, _, said = users[0].got(image)
        assert code == 8
        assert "may be anybody's" in said


def test_a_registry_that_is_down_is_told_and_what_is_named_by_digest_is_there(
    testbed: Testbed, registry: PrivateRegistry, users: tuple[User, User, User]
) -> None:
    code, path, said = users[0].got()
    assert code == 0, said
    digest = json.loads((Path(path).parent / "entry.json").read_text())["digest"]
    registry.stop()
    code, _, said = users[0].got()
    assert code == 5
    assert "cannot be reached" in said
    pinned = f"docker://{users[0].address}/nvidia/pytorch@{digest}"
    code, again, said = users[0].got(pinned)
    assert (code, again) == (0, path)
    assert "you could read lately" in said
    assert users[1].got(pinned)[0] == 5, "who has never shown his right gets nothing"


def test_wherever_an_importer_is_killed_the_next_one_goes_on(
    testbed: Testbed, registry: PrivateRegistry, users: tuple[User, User, User]
) -> None:
    began = time.monotonic()
    assert users[0].got()[0] == 0
    whole = time.monotonic() - began
    drawn = random.Random(18)
    for _ in range(COUNT):
        empty(testbed)
        first, moment = users[0].get(), drawn.uniform(0.1, whole)
        time.sleep(moment)
        waits = users[1].get()
        time.sleep(0.2)
        kill_importers_but_youngest()
        code, path, said = ended(waits)
        assert code == 0, (moment, said)
        ended(first)
        assert users[1].reads(path)
        left = [one for one in (cache(testbed) / "incoming").iterdir() if one.suffix != ".json"]
        assert not left, (moment, left)
        assert [one.name for one in (cache(testbed) / "images").iterdir()] == [
            Path(path).parent.name
        ]
        code, again, said = users[0].got()
        assert (code, again) == (0, path), (moment, said)


def kill_importers_but_youngest() -> None:
    for one in sorted(importers())[:-1]:
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue


def test_many_connections_of_one_user_leave_the_service_to_others(
    testbed: Testbed, registry: PrivateRegistry, users: tuple[User, User, User]
) -> None:
    code = (
        "import socket, time, sys\nfound = []\nfor _ in range(200):\n one = "
        "socket.socket(socket.AF_UNIX)\n"
        " one.connect(sys.argv[1])\n found.append(one)\nprint('connected', "
        "flush=True)\ntime.sleep(60)\n"
    )
    greedy = users[2].start("python3", "-c", code, str(testbed.folder / "run-images/images.sock"))
    assert greedy.stdout
    assert greedy.stdout.readline() == "connected\n"
    try:
        assert users[0].got()[0] == 0
    finally:
        greedy.kill()
        greedy.communicate()


def test_a_registry_of_tokens_shows_the_service_no_password(
    testbed: Testbed, users: tuple[User, User, User], tmp_path: Path, tiny_base: str
) -> None:
    one, two, _ = users
    logins = {"user61001": "a-password-of-one", "user61002": "two"}
    registry = TokenRegistry(tmp_path, testbed.folder / "state/registry", 5011, logins).start()
    image = f"docker://127.0.0.1:5011/{SMALL}"
    for user, word in ((one, "a-password-of-one"), (two, "wrong")):
        line = f"machine 127.0.0.1 login user{user.number} password {word}\n"
        (user.home / ".config/enroot/.credentials").write_text(line)
    with tempfile.TemporaryDirectory(dir=testbed.folder) as name:
        folder = Path(name)
        folder.chmod(0o755)
        named = "'127.0.0.1:5011': {plain_http: true, token_server: '127.0.0.1:5012'}"
        try:
            with own_service(folder, named) as site:
                code, path, said = one.got(image, HPCSTACK_SITE=str(site))
                assert code == 0 and one.reads(path) and not two.reads(path), said
                assert registry.given == ["user61001", ""], (
                    "and one without a login: is it for everybody?"
                )
                code, _, said = two.got(image, HPCSTACK_SITE=str(site))
                assert code == 5
                assert "refuses" in said
                assert not two.reads(path)
                two.write_login("")
                (two.home / ".config/enroot/.credentials").write_text("")
                code, _, said = two.got(image, HPCSTACK_SITE=str(site))
                assert code == 5 and not two.reads(path), said
                kept = [
                    one for one in folder.rglob("*") if one.is_file() and one.name != "image.sqsh"
                ]
                assert not any(b"a-password-of-one" in path.read_bytes() for path in kept)
        finally:
            registry.stop()


def test_a_token_that_runs_out_in_the_middle_is_asked_for_again(
    testbed: Testbed, users: tuple[User, User, User], tmp_path: Path
) -> None:
    """Tokens that live a second, and more layers than are fetched at once: who asked answers until
    all is there.
    """
    layers = [tar([member(f"opt/{n}", random.Random(n).randbytes(4 << 20))]) for n in range(100)]
    source = layout(tmp_path / "many", layers)
    to = testbed.registry
    subprocess.run(["skopeo", "copy", "--quiet", "--dest-tls-verify=false", f"oci:{source}", f"docker://{to}/tests/many:1"],
                   check=True)  # fmt: skip
    one = users[0]
    registry = TokenRegistry(
        tmp_path, testbed.folder / "state/registry", 5011, {"user61001": "one"}, lives_s=1
    ).start()
    (one.home / ".config/enroot/.credentials").write_text(
        "machine 127.0.0.1 login user61001 password one\n"
    )
    with tempfile.TemporaryDirectory(dir=testbed.folder) as name:
        Path(name).chmod(0o755)
        named = "'127.0.0.1:5011': {plain_http: true, token_server: '127.0.0.1:5012'}"
        try:
            with own_service(Path(name), named) as site:
                code, path, said = one.got(
                    "docker://127.0.0.1:5011/tests/many:1", HPCSTACK_SITE=str(site)
                )
                assert code == 0 and Path(path).stat().st_size > 100 * (4 << 20), said
                assert registry.given.count("user61001") > 1, (registry.given, said)
        finally:
            registry.stop()


@pytest.mark.faults
def test_a_disk_that_is_full_is_told_and_nothing_is_half_there(
    testbed: Testbed, tmp_path: Path, tiny_base: str
) -> None:
    """A service of its own, on a filesystem of 20 MB: the image has more."""
    folder = tmp_path / "cache"
    folder.mkdir()
    named = f"nvcr.io: {{mirror: '{testbed.ngc}'}}"
    get = [
        sys.executable,
        "-m",
        "hpcstack",
        "--site",
        f"{tmp_path}/site.yaml",
        "cache",
        "get",
        f"docker://nvcr.io#{SMALL}",
    ]
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m,mode=755", "tmpfs", str(folder)], check=True
    )
    try:
        with own_service(tmp_path, named, testbed.ca_bundle):
            done = subprocess.run(get, capture_output=True, text=True, check=False)
            assert done.returncode == 8 and "no room" in done.stderr, done.stderr
            assert not list((folder / "images").iterdir())
            assert not list((folder / "incoming").iterdir())
            subprocess.run(["mount", "-o", "remount,size=1g", str(folder)], check=True)
            done = subprocess.run(get, capture_output=True, text=True, check=False)
            assert done.returncode == 0 and Path(done.stdout.strip()).is_file(), done.stderr
            again = json.loads(
                subprocess.run([*get, "--json"], capture_output=True, check=True).stdout
            )
            assert again["path"] == done.stdout.strip()
            assert again["how"] == "there"
            cache = get[: get.index("get")]
            (listed,) = json.loads(
                subprocess.run([*cache, "list", "--json"], capture_output=True, check=True).stdout
            )
            assert listed["public"]
            assert listed["image"].startswith("nvcr.io/hpcstack-tests/debian-tiny@sha256:")
            assert (
                json.loads(
                    subprocess.run([*cache, "gc", "--json"], capture_output=True, check=True).stdout
                )
                == []
            )
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
