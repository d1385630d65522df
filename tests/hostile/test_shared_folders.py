"""A member of the publishing group against another one, or root: entries that are swapped for
links, forged records.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcstack.build.engines.builtin import ENGINE
from hpcstack.build.request import BuildRequest
from hpcstack.core import descriptors
from hpcstack.core.errors import StoreError
from hpcstack.core.files import write_text
from hpcstack.core.lease import hold_lease, identify_process, read_holder
from hpcstack.core.process import Runner
from hpcstack.core.sharing import Sharing, find_sharing
from hpcstack.publish import gc
from hpcstack.releases.ledger_format import parse_ledger
from hpcstack.releases.tree import Tree
from hpcstack.site.load import Site
from hpcstack.store.artifact import IMAGE
from hpcstack.store.cache import cache_of, open_own_cache
from hpcstack.store.store import Store
from support.locks import example_lock
from support.modules import Place

SECONDS = float(os.environ.get("HPCSTACK_THIEF_SECONDS", "1.5"))  # ci/soak: 10
EXCHANGE = 2
THIEF = """
import ctypes, sys
libc = ctypes.CDLL(None)
one, other = (name.encode() for name in sys.argv[1:3])
while True:
    libc.renameat2(-100, one, -100, other, 2)
"""


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file and a folder that are nobody's business; as they were at the end."""
    folder = tmp_path / "victim"
    folder.mkdir(mode=0o700)
    (folder / "file").write_text("mine")
    (folder / "file").chmod(0o600)
    before = looks(folder)
    yield folder
    assert looks(folder) == before, "nothing outside changes"


def looks(folder: Path) -> list[tuple[str, int, int, str]]:
    found = []
    for path in (folder, *sorted(folder.rglob("*"))):
        about = path.lstat()
        found.append(
            (path.name, about.st_mode, about.st_gid, path.read_text() if path.is_file() else "")
        )
    return found


@pytest.fixture
def group_name() -> str:
    """A group that this process may give files to."""
    import grp

    number = (
        next((one for one in os.getgroups() if one != os.getegid()), os.getegid())
        if os.geteuid()
        else 1
    )
    return grp.getgrgid(number).gr_name


@pytest.fixture
def group(group_name: str) -> Sharing:
    return find_sharing(group_name, ())


def during_swaps(one: Path, other: Path, act: object) -> None:
    """ACT, again and again, while two names change places as fast as they can."""
    assert callable(act)
    thief = subprocess.Popen([sys.executable, "-c", THIEF, str(one), str(other)])
    try:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            act()
    finally:
        thief.kill()
        thief.wait()
    if one.is_symlink():  # for who cleans up
        ctypes.CDLL(None).renameat2(-100, os.fsencode(one), -100, os.fsencode(other), EXCHANGE)


def test_handing_over_goes_through_no_folder_that_becomes_a_link(
    tmp_path: Path, victim: Path, group: Sharing
) -> None:
    """N4: root's file became group-writable at the first try, by any verb that opened the cache."""
    top = tmp_path / "site/shared"
    (top / "inner").mkdir(parents=True)
    (top / "inner/file").write_text("x")
    (top / "link").symlink_to(victim)

    inner = os.open(top / "inner", os.O_RDONLY)

    def act() -> None:
        os.fchmod(inner, 0o755)
        group.hand_over(top)
        group.open_old(tmp_path / "site")

    during_swaps(top / "inner", top / "link", act)
    os.close(inner)


def test_a_file_with_a_second_name_is_not_handed_over(
    tmp_path: Path, victim: Path, group: Sharing
) -> None:
    top = tmp_path / "shared"
    top.mkdir()
    (top / "file").hardlink_to(victim / "file")
    group.hand_over(top)


def test_another_owners_folder_is_not_entered(tmp_path: Path, group: Sharing) -> None:
    if os.geteuid():
        pytest.skip("only root makes what another owns")
    (tmp_path / "shared/theirs").mkdir(parents=True)
    (tmp_path / "shared/theirs/file").write_text("x")
    os.chown(tmp_path / "shared/theirs", 12345, 12345)
    group.hand_over(tmp_path / "shared")
    assert (tmp_path / "shared/theirs/file").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "shared/theirs").stat().st_gid == 12345


def test_what_is_written_goes_to_the_file_that_was_opened(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N10: the temporary file was swapped for a link before its mode was changed by name. Here it
    is swapped at exactly that moment, whichever way the mode is changed.
    """
    top = tmp_path / "shared"
    top.mkdir()

    def after_a_swap(act: Callable[..., None]) -> Callable[..., None]:
        def acting(*words: Any) -> None:
            for part in top.glob(".*.part"):
                part.unlink()
                part.symlink_to(victim / "file")
            act(*words)

        return acting

    monkeypatch.setattr(descriptors, "set_marks", after_a_swap(descriptors.set_marks))
    monkeypatch.setattr(Path, "chmod", after_a_swap(Path.chmod))
    with contextlib.suppress(OSError, StoreError):
        write_text(top / "file", "text", 0o664)
    monkeypatch.undo()
    thief = top / "thief"
    thief.symlink_to(victim / "file")
    write_text(thief, "text", 0o666)
    assert not thief.is_symlink()
    assert (victim / "file").read_text() == "mine"


def test_what_is_written_goes_into_no_folder_that_becomes_a_link(
    tmp_path: Path, victim: Path
) -> None:
    if os.geteuid():
        pytest.skip("only root makes what another owns")
    top = tmp_path / "shared"
    (top / "inner").mkdir(parents=True)
    (top / "link").symlink_to(victim)
    top.chmod(0o2775)
    os.chown(top / "link", 12345, 12345, follow_symlinks=False)

    def act() -> None:
        with contextlib.suppress(OSError, StoreError):
            write_text(top / "inner/file", "text")

    during_swaps(top / "inner", top / "link", act)


def test_what_is_made_is_new(tmp_path: Path, victim: Path) -> None:
    """N5: no link in the place of a file that is to be made is written through, nor emptied."""
    (tmp_path / "link").symlink_to(victim / "file")
    with pytest.raises(FileExistsError):
        descriptors.create_file(tmp_path / "link")


def test_a_link_that_another_made_is_not_followed(tmp_path: Path, victim: Path) -> None:
    if os.geteuid():
        pytest.skip("only root makes what another owns")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2775)
    link = shared / "link"
    link.symlink_to(victim)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    with pytest.raises(StoreError, match="user 12345 made"):
        write_text(link / "new", "text")
    with pytest.raises(StoreError, match="user 12345 made"):
        descriptors.make_folder(link / "new")
    with pytest.raises(StoreError, match="user 12345 made"):
        descriptors.remove_tree(link / "file")
    with pytest.raises(StoreError, match="user 12345 made"):
        descriptors.rename_path(link / "file", link / "gone")
    os.chown(link, 0, 0, follow_symlinks=False)
    assert descriptors.list_names_in(link) == ["file"], "root's own link may lead to a larger disk"


def test_what_is_coming_into_the_store_is_ours_alone(
    tmp_path: Path, victim: Path, group: Sharing
) -> None:
    """N5: a member put `image.sqsh -> ANY FILE` into a folder that root then wrote an image to."""
    store = Store(tmp_path / "store")
    with store.incoming() as folder:
        (real,) = (store.top / "incoming").iterdir()
        assert real.stat().st_mode & 0o777 == 0o700
        real.rename(store.top / "aside")
        real.mkdir()
        (real / IMAGE).symlink_to(victim / "file")
        (folder / IMAGE).write_bytes(b"an image")
        assert (store.top / "aside" / IMAGE).read_bytes() == b"an image"
        assert (victim / "file").read_text() == "mine"


def test_who_moves_an_incoming_image_gains_nothing(tmp_path: Path, group_name: str) -> None:
    place = Place(tmp_path, group=group_name)
    wanted = place.artifact(place.stack(), b"image")
    log = tmp_path / "log"
    log.write_text("")
    with place.store.incoming() as folder:
        (folder / IMAGE).write_bytes(b"image")
        (real,) = (place.store.top / "incoming").iterdir()
        real.rename(place.store.top / "aside")
        with pytest.raises(StoreError, match="moved a folder"):
            place.store.put(wanted, folder / IMAGE, log)


LEDGER: dict[str, Any] = {
    "format": "hpcstack/modules/v1", "name": "pytorch", "default": "24.11-r1", "pinned": "", "events": [],
    "entries": [{"release": "24.11-r1", "version": "24.11", "channel": "production", "key": "ab12", "sha256": "x", "made": "", "by": ""}],
    "aliases": {"24.11": "24.11-r1"}, "dates": {},
}  # fmt: skip
CLIMBS = "../../../../etc/profile.d/zz.sh"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"name": "other"}, "it is the ledger of other"),
        ({"name": "../x"}, "name"),
        ({"entries": [{**LEDGER["entries"][0], "release": CLIMBS}]}, "release"),
        ({"entries": [{**LEDGER["entries"][0], "release": "../24.11-r1"}]}, "release"),
        ({"entries": [{**LEDGER["entries"][0], "release": "24.11-r1\n"}]}, "release"),
        ({"entries": [{**LEDGER["entries"][0], "key": "../../home"}]}, "key"),
        ({"entries": [{**LEDGER["entries"][0], "version": "24.12"}]}, "is no release of"),
        ({"entries": [{**LEDGER["entries"][0], "state": "other"}]}, "state"),
        ({"entries": [{**LEDGER["entries"][0], "more": "x"}]}, "more"),
        ({"entries": [*LEDGER["entries"], *LEDGER["entries"]]}, "twice"),
        ({"dates": {CLIMBS: {"reason": "$(id)"}}}, "dates"),
        ({"dates": {"24.11": {"reason": "a\nreason=b"}}}, "control character"),
        ({"aliases": {"24.11": "24.11-r2"}}, "no release of it"),
        ({"aliases": {"../x": "24.11-r1"}}, "aliases"),
        ({"default": "/etc"}, "default"),
        ({"unknown": 1}, "unknown"),
        ({"format": "hpcstack/modules/v0x"}, "format"),
        (
            {
                "events": [
                    {
                        "at": "",
                        "by": "",
                        "verb": "x",
                        "release": "",
                        "before": {"aliases": {"../x": "24.11-r1"}},
                    }
                ]
            },
            "before",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_forged_ledger_is_refused(change: dict[str, object], where: str) -> None:
    """N3: a release's name, or a version's, became a path that root removed, or wrote to."""
    assert parse_ledger(json.loads(json.dumps(LEDGER)), "x", "pytorch").name == "pytorch"
    with pytest.raises(StoreError) as refused:
        parse_ledger(json.loads(json.dumps({**LEDGER, **change})), "x", "pytorch")
    assert where in refused.value.message


def test_gc_of_a_forged_ledger_removes_nothing(tmp_path: Path, victim: Path) -> None:
    place = Place(tmp_path)
    place.publish()
    path = place.site.module_root / "state/pytorch/current/ledger.json"
    document = json.loads(path.read_text())
    climbs = os.path.relpath(victim, place.store.top / "releases/pytorch")
    document["entries"].append({**document["entries"][0], "release": climbs, "state": "gone"})
    path.chmod(0o644)
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=r"damaged: entries\.1\.release"):
        gc.list_items(place.site, Runner(), 0, slurm=False)


def test_a_newer_ledger_can_be_read_and_is_not_changed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish()
    path = place.site.module_root / "state/pytorch/current/ledger.json"
    document = json.loads(path.read_text())
    document |= {"format": "hpcstack/modules/v2", "news": {"a": 1}}
    document["entries"][0]["colour"] = "red"
    path.chmod(0o644)
    path.write_text(json.dumps(document))
    tree = Tree(place.site.module_root)
    assert tree.ledger("pytorch").entries[0].release == "24.11-r1"
    with pytest.raises(StoreError, match=r"newer hpcstack \(format 2; this one writes 1\)"):
        tree.ledger("pytorch", to_change=True)


@pytest.mark.parametrize("key", ["../" * 12 + "etc", "../x", "a/b", "", "A", "a\n", "x" * 65, "."])
def test_a_key_that_is_none_becomes_no_path(site: Site, key: str) -> None:
    """N9: `../` in a group's memo became the key: root's build replaced and deleted any folder."""
    store = Store(site.store)
    assert store.artifact(key) is None
    with pytest.raises(StoreError, match="not the key"), store.lease(key):
        pass


@pytest.mark.parametrize("key", ["../x", "a/b", ""])
def test_nothing_is_put_under_what_is_no_key(tmp_path: Path, key: str) -> None:
    place = Place(tmp_path)
    with pytest.raises(StoreError, match="not the key"):
        place.artifact(place.stack(), b"image", key=key)


def make_request(tmp_path: Path, **site: str) -> tuple[Site, BuildRequest]:
    place = Place(tmp_path, build={"cachedir": str(tmp_path / "cache")}, **site)
    stack = place.stack("miniforge-26.3")
    return place.site, BuildRequest(stack, example_lock(stack), place.site, "linux/amd64", ENGINE)


@pytest.mark.parametrize("text", ["../" * 8 + "etc", "a" * 39, "a" * 41, "A" * 40, "a" * 40 + "\n"])
def test_a_memo_that_holds_no_key_is_not_believed(tmp_path: Path, text: str) -> None:
    """N9: what lay in a group's memo became the key, and the key a path that was deleted."""
    site, request = make_request(tmp_path)
    key = request.key
    (memo,) = (open_own_cache(site).top / "keys").iterdir()
    assert memo.read_text() == key
    memo.write_text(text)
    assert make_request(tmp_path)[1].key == key


def test_memos_of_keys_are_not_the_groups(tmp_path: Path, group_name: str) -> None:
    site, request = make_request(tmp_path, group=group_name)
    assert request.key
    assert list((open_own_cache(site).top / "keys").iterdir())
    assert not list((cache_of(site).top / "keys").iterdir())


def test_folders_without_end_are_removed_and_counted(tmp_path: Path) -> None:
    """N12: 1,300 folders in one another ended gc, and each later build, with a RecursionError."""
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.write(file := os.open("file", os.O_WRONLY, dir_fd=here), b"x" * 5000)
    os.close(file)
    os.close(here)
    assert descriptors.count_bytes(tmp_path) > 0
    assert sum(1 for _ in descriptors.walk_folders(tmp_path)) == 3001
    descriptors.remove_tree(tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_removing_follows_nothing(tmp_path: Path, victim: Path) -> None:
    top = tmp_path / "tree"
    (top / "inner").mkdir(parents=True)
    (top / "closed").mkdir()
    (top / "closed/x").touch()
    (top / "closed").chmod(0)
    (top / "link").symlink_to(victim)
    (top / "inner/file").hardlink_to(victim / "file")

    def act() -> None:
        descriptors.remove_tree(top / "inner")
        if not (top / "inner").is_symlink() and not (top / "inner").exists():
            (top / "inner").mkdir()

    during_swaps(top / "inner", top / "link", act)
    descriptors.remove_tree(top)
    assert not top.exists()


@pytest.mark.parametrize("kind", ["a link", "a pipe", "a large file"])
def test_what_lies_in_the_place_of_a_lease_is_refused(tmp_path: Path, kind: str) -> None:
    """A member of the group puts it there: a refusal that says what to do, and no traceback."""
    path = tmp_path / "leases/key"
    path.parent.mkdir()
    if kind == "a link":
        path.symlink_to("/etc/passwd")
    elif kind == "a pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"x" * 10_000)
    with pytest.raises(StoreError, match="no lease can be had"), hold_lease(path):
        pass


@pytest.mark.parametrize(
    "text",
    ["a+b", "\x1b]0;x+0+1+2+3+", "h+0+1+2+3+4+5", "h+0+1+" + "9" * 40 + "+3+", "h/../x+0+1+2+3+"],
)
def test_what_is_no_holder_is_told_as_none(text: str) -> None:
    assert read_holder(text) is None
    assert read_holder(str(identify_process())) == identify_process()


def test_a_descriptor_that_a_recipe_names_reaches_no_program(tmp_path: Path) -> None:
    """Words of a command line that look like a pinned folder hand on nothing of ours."""
    with (tmp_path / "secret").open("w") as secret, descriptors.pin_path(tmp_path) as pinned:
        words = [
            "mksquashfs",
            f"/proc/self/fd/{secret.fileno()}",
            str(pinned),
            f"--root={pinned}/x",
        ]
        assert descriptors.list_pins(words) == (int(pinned.name),)
    assert descriptors.list_pins(words) == ()
