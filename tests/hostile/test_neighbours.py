"""Others on a login node or in a publishing group: rows C1, H1, H2, H3, H5, M2 of what once got
through.
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pwd
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import make_site
from hpcstack.core import descriptors, files
from hpcstack.core.errors import HpcstackError, InputError, StoreError
from hpcstack.core.files import make_private_folder, write_text
from hpcstack.core.outputs import write_output
from hpcstack.lock import model
from hpcstack.lock.model import Lock
from hpcstack.lock.path import lock_path
from hpcstack.recipe.catalog import Catalog
from hpcstack.releases.permissions import Permissions
from hpcstack.releases.records import read_attachments
from hpcstack.render.template import read_data_file
from hpcstack.resolve.packages import _read_answer
from hpcstack.store.cache import cache_of
from hpcstack.store.store import Store, _check_own
from support.clock import processor_seconds
from support.modules import Place

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
NOBODY = 65534


# -- C1: links where a lock belongs


@pytest.fixture
def contributed(tmp_path: Path) -> Path:
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "demo-1.yaml").write_text(
        "apiVersion: hpcstack/v1\nname: demo\nversion: '1'\nsummary: s\nbase: {image: "
        "'docker.io/library/debian:12'}\n"
    )
    return folder


@pytest.mark.parametrize("there", [True, False])
def test_c1_a_lock_that_is_a_link_is_refused_by_its_name(
    contributed: Path, tmp_path: Path, there: bool
) -> None:
    victim = tmp_path / ".bashrc"
    if there:
        victim.write_text("mine")
    (contributed / "demo-1.lock.json").symlink_to(victim)
    recipe = Catalog([contributed]).find("demo-1")
    with pytest.raises(InputError, match=r"demo-1\.lock\.json is a symbolic link"):
        lock_path(recipe, make_site(tmp_path))
    assert victim.exists() == there
    assert not there or victim.read_text() == "mine"


def test_c1_also_in_the_lock_directory(tmp_path: Path) -> None:
    from hpcstack.core import data

    site = make_site(tmp_path)
    site.lock_dir.mkdir(parents=True)
    (site.lock_dir / "pytorch-24.11.lock.json").symlink_to(tmp_path / "x")
    with pytest.raises(InputError, match="symbolic link"):
        lock_path(Catalog([data.find_data_folder("recipes")]).find("pytorch-24.11"), site)


def test_c1_a_lock_is_not_read_through_a_link(lock: Lock, tmp_path: Path) -> None:
    (tmp_path / "real").write_text(lock.text())
    (tmp_path / "a.lock.json").symlink_to(tmp_path / "real")
    with pytest.raises(InputError, match="symbolic link"):
        model.read_lock(tmp_path / "a.lock.json")


def test_c1_lint_says_so_and_goes_on(contributed: Path, tmp_path: Path) -> None:
    (contributed / "demo-1.lock.json").symlink_to("/etc/passwd")
    done = subprocess.run(
        ["hpcstack", "--recipes", str(contributed), "lint", "--all"], capture_output=True, text=True, check=False,
        env={**os.environ, "HOME": str(tmp_path), "PATH": f"{Path(os.sys.executable).parent}:{os.environ['PATH']}"},  # type: ignore[attr-defined]
    )  # fmt: skip
    assert done.returncode == 2
    assert "demo-1.lock.json is a symbolic link" in done.stdout + done.stderr


@pytest.mark.parametrize("target", ["../outside.yaml", "/etc/passwd", "demo-2.yaml", "loop"])
def test_recipes_behind_links_that_leave_their_folder(
    contributed: Path, tmp_path: Path, target: str
) -> None:
    text = (contributed / "demo-1.yaml").read_text().replace("'1'", "'2'")
    (tmp_path / "outside.yaml").write_text(text)
    (contributed / "demo-2.yaml").symlink_to(target)
    with pytest.raises(HpcstackError) as error:
        Catalog([contributed]).read(contributed / "demo-2.yaml")
    assert "root:" not in error.value.message


def test_a_recipe_behind_a_link_inside_its_folder_is_taken(contributed: Path) -> None:
    (contributed / "real").mkdir()
    text = (contributed / "demo-1.yaml").read_text().replace("'1'", "'2'")
    (contributed / "real/two.yaml").write_text(text)
    (contributed / "demo-2.yaml").symlink_to("real/two.yaml")
    assert Catalog([contributed]).find("demo-2").stack.full_name == "demo-2"


# -- files that somebody else made


def test_what_is_written_replaces_a_link_and_a_pipe(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "link").symlink_to(victim)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        write_text(tmp_path / name, "ours")
        assert (tmp_path / name).read_text() == "ours"
        assert not (tmp_path / name).is_symlink()
    assert victim.read_text() == "mine"
    (tmp_path / "named").symlink_to(victim)
    write_output(tmp_path / "named", "what the user asked for")
    assert victim.read_text() == "what the user asked for"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "device", "large"])
def test_what_is_read_is_an_ordinary_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "link":
        path.symlink_to("/etc/hostname")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        path.write_bytes(b"x" * 101)
    with pytest.raises(InputError):
        files.read_bytes(path, 100)


def test_no_folder_on_the_way_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "home/.ssh").mkdir(parents=True)
    (tmp_path / "home/.ssh/id").write_text("key")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/answers").symlink_to(tmp_path / "home/.ssh")
    with pytest.raises(InputError, match="link"):
        files.read_bytes(tmp_path / "work/answers/id", 100, below=tmp_path / "work")
    with pytest.raises(InputError, match="link"):
        files.list_files_under(tmp_path / "work", tmp_path / "work/answers")
    with pytest.raises(InputError, match="out of"):
        files.read_bytes(tmp_path / "work/../home/.ssh/id", 100, below=tmp_path / "work")
    with pytest.raises(StoreError, match="not a folder of its own"):
        files.without_links(tmp_path, tmp_path / "work/answers/x")


def test_one_file_that_others_can_write_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("{}")
    for mode in (0o666, 0o664, 0o622):
        path.chmod(mode)
        with pytest.raises(InputError, match="written by others"):
            files.read_bytes(path, 100, own=True)
    path.chmod(0o644)
    assert files.read_bytes(path, 100, own=True) == b"{}"


# -- M2: what a base answers


@pytest.mark.parametrize("how", ["file", "folder", "pipe", "huge"])
def test_m2_an_answer_that_is_a_link_is_not_read(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcstack.resolve import packages

    secret = tmp_path / "id_ed25519"
    secret.write_text("private")
    top = tmp_path / "hpcstack"
    (top / "answers").mkdir(parents=True)
    if how == "file":
        (top / "answers/pip.json").symlink_to(secret)
    elif how == "folder":
        (top / "answers").rmdir()
        (top / "answers").symlink_to(tmp_path)
        secret.rename(tmp_path / "pip.json")
    elif how == "pipe":
        os.mkfifo(top / "answers/pip.json")
    else:
        monkeypatch.setattr(packages, "MAX_ANSWER", 10)
        (top / "answers/pip.json").write_text("x" * 11)
    with pytest.raises(InputError):
        _read_answer(top / "answers/pip.json", top)
    assert _read_answer(top / "answers/none" if how != "folder" else top / "none", top) == ""


def test_m2_a_step_that_puts_a_link_over_a_folder_costs_nothing_outside(tmp_path: Path) -> None:
    from hpcstack.build.engines.overlay import _drop

    outside = tmp_path / "outside"
    (outside / "empty").mkdir(parents=True)
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper/etc").symlink_to(outside)
    _drop(tmp_path / "upper", tmp_path / "upper/etc/empty")
    assert (outside / "empty").exists()
    (tmp_path / "upper/real/empty").mkdir(parents=True)
    _drop(tmp_path / "upper", tmp_path / "upper/real/empty")
    assert not (tmp_path / "upper/real/empty").exists()


# -- H1: a trial as another user


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="hpcstack-test-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@root
@pytest.mark.lmod
def test_h1_what_the_other_user_puts_there_root_does_not_touch(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thief who plants links in all that he can write to, as fast as he can, gets nothing."""
    tmp_path = open_folder
    secret = tmp_path / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    top = tmp_path / "tmp"
    top.mkdir()
    top.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(top))
    monkeypatch.setattr("tempfile.tempdir", str(top))
    (tmp_path / "place").mkdir(mode=0o755)
    place = Place(tmp_path / "place", modules={"check_as": "nobody"})
    seen: list[str] = []
    ended = threading.Event()
    thief = subprocess.Popen(
        ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", "bash", "-c",
         'while :; do for d in "$1"/*/ "$1"/*/*/; do ln -sf "$2" "$d/before" "$d/said" "$d/x" 2>/dev/null; done; done',
         "bash", str(top), str(secret)],
    )  # fmt: skip

    def watch() -> None:
        while not ended.is_set():
            with contextlib.suppress(FileNotFoundError):
                seen.extend(f"{path}" for path in top.glob("*") if path.stat().st_mode & 0o022)
            time.sleep(0.002)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    published, spoilt = 0, []
    try:
        for number in range(3):
            try:
                place.publish(content=f"image {number}".encode())
                published += 1
            except (
                HpcstackError
            ) as error:  # he may spoil the trial in his own folder, and it says so
                spoilt.append(error.message)
    finally:
        ended.set()
        thief.kill()
        thief.wait()
        watcher.join()
    about = secret.stat()
    assert stat.S_IMODE(about.st_mode) == 0o600
    assert about.st_uid == 0
    assert secret.read_text() == "root's"
    assert not seen, "the folder of the trial is never open to others"
    assert published == 3 or spoilt, "it was tried"


# -- H2: where images are staged


def stage(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [
        "sh",
        "-c",
        read_data_file("launchers", "on-node/stage.sh"),
        "stage",
        str(folder),
        *words,
    ]
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]}
    )


@root
@pytest.mark.parametrize("mode", [0o755, 0o1777, 0o777])
def test_h2_a_folder_in_somebody_elses_folder_is_refused(tmp_path: Path, mode: int) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    theirs.chmod(mode)
    done = stage(theirs / "hpcstack-staged-0", "have", "x")
    assert done.returncode == 125
    assert "could swap" in done.stderr
    assert not list(theirs.iterdir())
    done = stage(theirs / "deeper" / "hpcstack-staged-0", "have", "x")
    assert done.returncode == 125, "whoever is further up can swap it, too"


@root
@pytest.mark.parametrize(("mode", "status"), [(0o1777, 1), (0o755, 1), (0o777, 125), (0o775, 1)])
def test_h2_roots_own_folder_is_sticky_or_closed(tmp_path: Path, mode: int, status: int) -> None:
    tmp_path.chmod(mode)  # the group root has root alone
    assert stage(tmp_path / "hpcstack-staged-0", "have", "x").returncode == status


@root
def test_h2_a_folder_that_another_made_or_a_link(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    os.chown(tmp_path / "one", NOBODY, NOBODY)
    (tmp_path / "real").mkdir()
    (tmp_path / "two").symlink_to(tmp_path / "real")
    for name in ("one", "two"):
        assert "somebody else's" in stage(tmp_path / name, "have", "x").stderr
    (tmp_path / "three").mkdir(mode=0o777)
    assert stage(tmp_path / "three", "have", "x").returncode == 1
    assert stat.S_IMODE((tmp_path / "three").stat().st_mode) == 0o700


# -- H3: the cache


@root
def test_h3_a_cache_that_another_made_is_refused(tmp_path: Path) -> None:
    site = make_site(tmp_path, build={"cachedir": str(tmp_path / "shared")})
    folder = tmp_path / "shared" / f"hpcstack-bases-{os.getuid()}"
    folder.mkdir(parents=True)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(StoreError, match="belongs to nobody"):
        cache_of(site)


@pytest.mark.parametrize("how", ["link", "file"])
def test_h3_a_cache_that_is_no_folder(tmp_path: Path, how: str) -> None:
    site = make_site(tmp_path, build={"cachedir": str(tmp_path / "shared")})
    folder = tmp_path / "shared" / f"hpcstack-bases-{os.getuid()}"
    folder.parent.mkdir()
    (tmp_path / "evil").mkdir()
    if how == "link":
        folder.symlink_to(tmp_path / "evil")
    else:
        folder.write_text("")
    with pytest.raises(StoreError):
        cache_of(site)


def test_h3_a_cache_is_closed_each_time_it_is_used(tmp_path: Path) -> None:
    site = make_site(tmp_path, build={"cachedir": str(tmp_path / "shared")})
    top = cache_of(site).top
    for mode in (0o777, 0o755):
        top.chmod(mode)
        assert stat.S_IMODE(cache_of(site).top.stat().st_mode) == 0o700


# -- H5: the journal of a module tree


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.publish()
    return place


def journal(place: Place, **changes: Any) -> Path:
    path = place.site.module_root / "state/pytorch/journal.json"
    found: dict[str, Any] = {
        "format": "hpcstack/modules/v1", "verb": "publish", "homes": {".lua": "Core", "": "Tcl"}, "files": {},
        "moves": [], "generations": ["1"],
    }  # fmt: skip
    path.write_text(json.dumps(found | changes))
    return path


EVIL = {
    "an absolute path": {"files": {"/EVIL": "x"}},
    "a path that climbs": {"files": {"Core/pytorch/../../../EVIL": "x"}},
    "a path of another name": {"files": {"Core/other/1-r1.lua": "x"}},
    "a path of the state": {"files": {"state/pytorch/current": "x"}},
    "no modulefile": {"files": {"Core/pytorch/authorized_keys": "x"}},
    "a home outside": {"homes": {".lua": "../EVIL", "": "Tcl"}},
    "an absolute home": {"homes": {".lua": "/EVIL", "": "/EVIL"}},
    "a move from outside": {"moves": [["/EVIL", "/EVIL2", "{}"]]},
    "a generation that climbs": {"generations": ["../../EVIL"]},
    "a generation that is not text": {"generations": [7]},
    "a text that is none": {"files": {"Core/pytorch/1-r1.lua": 5}},
    "moves that are none": {"moves": "x"},
}


@pytest.mark.parametrize("what", EVIL)
def test_h5_a_journal_says_only_what_a_change_of_this_name_could(
    place: Place, tmp_path: Path, what: str
) -> None:
    changes = json.loads(json.dumps(EVIL[what]).replace("/EVIL", f"{tmp_path}/EVIL"))
    path = journal(place, **changes)
    before = sorted(str(one) for one in tmp_path.rglob("*"))
    with pytest.raises(StoreError):
        place.publish(content=b"another")
    after = sorted(str(one) for one in tmp_path.rglob("*"))
    assert path.exists()
    assert not any("EVIL" in one for one in after)
    assert [
        one for one in after if one not in before and "/modules/" in one and "lease" not in one
    ] == []


@root
def test_h5_a_journal_of_another_owner_is_refused(place: Place) -> None:
    path = journal(place)
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(StoreError, match="not trusted"):
        place.publish(content=b"another")
    path.unlink()
    assert place.publish(content=b"another").release == "pytorch/24.11-r2", (
        "what was published before stays"
    )


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_h5_nor_one_that_others_can_write(place: Place, mode: int) -> None:
    journal(place).chmod(mode)
    with pytest.raises(StoreError, match="not trusted"):
        place.publish(content=b"another")


def test_h5_nor_a_link(place: Place, tmp_path: Path) -> None:
    path = journal(place)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symbolic link"):
        place.publish(content=b"another")


@root
def test_h5_a_folder_of_the_tree_that_is_a_link_is_not_written_through(
    place: Place, tmp_path: Path
) -> None:
    import shutil

    (tmp_path / "ssh").mkdir()
    shutil.rmtree(place.site.module_root / "Core/pytorch")
    (place.site.module_root / "Core/pytorch").symlink_to(tmp_path / "ssh")
    os.chown(place.site.module_root / "Core/pytorch", NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(HpcstackError):
        place.publish(content=b"another")
    assert list((tmp_path / "ssh").iterdir()) == []
    with pytest.raises(StoreError):
        Permissions().folder(place.site.module_root, place.site.module_root / "Core/pytorch/x")


def test_h5_a_prepared_release_that_somebody_put_there_is_not_written_through(
    place: Place, tmp_path: Path
) -> None:
    from hpcstack.releases.journal import name_prepared

    (tmp_path / "target").mkdir()
    part = name_prepared(place.store.top / "releases/pytorch/24.11-r2", place.site.module_root)
    part.symlink_to(tmp_path / "target")
    assert place.publish(content=b"another").release == "pytorch/24.11-r3" or not list(
        (tmp_path / "target").iterdir()
    )
    assert not list((tmp_path / "target").iterdir())


# -- the store


def test_a_pointer_to_another_stacks_image_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path)
    evil = place.artifact(place.stack().model_copy(update={"version": "6.66"}), b"evil")
    (place.store.top / "stacks/pytorch-24.11").write_text(f"{evil.key}\n")
    with pytest.raises(StoreError, match=r"names an image of pytorch-6\.66"):
        place.store.newest("pytorch-24.11")


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("killed_at", [1, 2, 3])
def test_low_a_fresh_build_that_is_killed_loses_neither_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool, killed_at: int
) -> None:
    """Killed after any rename of the replacement there is a whole image; the next one to come goes
    on.
    """
    place = Place(tmp_path)
    stack = place.stack()
    old = place.artifact(stack, b"old")
    new, log = tmp_path / "new", tmp_path / "log"
    new.write_bytes(b"new!")
    log.write_text("")
    import hashlib
    from dataclasses import replace

    if not exchanges:
        monkeypatch.setattr(descriptors, "exchange_names", lambda *_: False)
    wanted = replace(old, sha256=hashlib.sha256(b"new!").hexdigest(), size=4)
    real, count = descriptors.rename_path, 0

    class Killed(BaseException): ...

    def rename(source: Path, target: Path) -> None:
        nonlocal count
        if old.key in str(source) or old.key in str(target):
            count += 1
            if count == killed_at:
                raise Killed
        real(source, target)

    monkeypatch.setattr(descriptors, "rename_path", rename)
    monkeypatch.setattr(
        descriptors, "remove_tree", lambda *_: None
    )  # a killed process cleans nothing
    with contextlib.suppress(Killed):
        place.store.put(wanted, new, log, instead=True)
    monkeypatch.undo()
    found = Store(place.store.top).artifact(old.key)
    assert found
    assert found.image.read_bytes() in (b"old", b"new!")
    done = Store(place.store.top).put(wanted, new, log, instead=True)
    assert done.image.read_bytes() == b"new!"
    assert not list((place.store.top / "images").glob(".*"))


def test_h1_the_spider_cache_is_marked_without_following_links(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("x")
    victim.chmod(0o600)
    (tmp_path / "link").symlink_to(victim)
    made = tmp_path / "made"
    made.mkdir()
    (made / "link").symlink_to(victim)
    (made / "twice").hardlink_to(victim)
    (made / "own").touch(0o600)
    with contextlib.suppress(OSError):
        Permissions().mark_tree(made)
    (made / "link").unlink()
    Permissions().mark_tree(made)
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600
    assert stat.S_IMODE((made / "own").stat().st_mode) == 0o644


def test_h5_the_mark_of_a_stale_cache_is_no_link(place: Place, tmp_path: Path) -> None:
    stale = place.site.module_root / "spider/stale"
    stale.unlink(missing_ok=True)
    stale.symlink_to(tmp_path / "nologin")
    place.publish(content=b"another")
    assert not (tmp_path / "nologin").exists()


@pytest.mark.parametrize("said", ["abc", "99999999999", "../x", "-1"])
def test_h5_a_generation_that_is_none_is_told(place: Place, said: str) -> None:
    current = place.site.module_root / "state/pytorch/current"
    current.unlink()
    current.symlink_to(said)
    with pytest.raises(StoreError):
        place.publish(content=b"another")
    assert not (place.site.module_root / "state/pytorch/journal.json").exists()


def test_removing_a_tree_that_is_a_link_removes_the_link(tmp_path: Path) -> None:
    from hpcstack.core.files import remove_tree

    (tmp_path / "victim/a").mkdir(parents=True)
    (tmp_path / "victim/a").chmod(0o755)
    (tmp_path / "x").symlink_to(tmp_path / "victim")
    remove_tree(tmp_path / "x")
    assert not (tmp_path / "x").is_symlink()
    assert stat.S_IMODE((tmp_path / "victim/a").stat().st_mode) == 0o755


def test_files_of_a_release_behind_links_are_not_published_again(
    place: Place, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("root's")
    folder = place.store.top / "releases/pytorch/24.11-r1"
    (folder / "lock.json").symlink_to(tmp_path / "secret")
    with pytest.raises(HpcstackError):
        read_attachments(place.store, "pytorch", "24.11-r1")


@pytest.mark.parametrize(
    "what",
    [
        "images/{key}/artifact.json",
        "stacks/pytorch-24.11",
        "releases/pytorch/24.11-r1/release.json",
    ],
)
@pytest.mark.parametrize("how", ["pipe", "zero", "garbage"])
def test_pipes_and_devices_in_the_store(place: Place, what: str, how: str) -> None:
    from hpcstack.releases.records import read_releases

    key = place.store.newest("pytorch-24.11").key  # type: ignore[union-attr]
    path = place.store.top / what.format(key=key)
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "zero":
        path.symlink_to("/dev/zero")
    else:
        path.write_text("[" * 100_000)
    began = processor_seconds()
    for act in (place.store.images, place.store.stacks, lambda: list(read_releases(place.store))):
        with contextlib.suppress(StoreError):
            act()
    assert processor_seconds() - began < 5


@root
def test_an_output_behind_a_strangers_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out").symlink_to(tmp_path / "mine")
    os.chown(tmp_path / "out", NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(InputError, match="somebody else"):
        write_output(tmp_path / "out", "x")
    assert (tmp_path / "mine").read_text() == "mine"


@root
def test_h3_a_cache_of_the_environment_that_is_another_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "hpcstack/bases").mkdir(parents=True)
    os.chown(tmp_path / "hpcstack/bases", NOBODY, NOBODY)
    with pytest.raises(StoreError, match="belongs to nobody"):
        cache_of(make_site(tmp_path / "site"))


def test_h3_a_folder_whose_parent_anybody_can_change(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(StoreError, match="in the place of"):
        cache_of(make_site(tmp_path, build={"cachedir": str(tmp_path / "shared")}))


@root
@pytest.mark.parametrize("below", ["", "a", "a/b"])
def test_a_private_folder_lies_below_nobody_elses(tmp_path: Path, below: str) -> None:
    """N20: whoever owns a folder on the way can put another one in the place of what was looked at."""
    theirs = tmp_path / "theirs"
    (theirs / below).mkdir(parents=True)
    os.chown(theirs, 12345, 12345)
    with pytest.raises(StoreError, match="who can put something else in the place of"):
        make_private_folder(theirs / below / "mine", "name another")


def test_the_users_own_cache_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N8: a step may leave a set-uid file in a kept layer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "hpcstack/bases").mkdir(parents=True)
    (tmp_path / "hpcstack/bases").chmod(0o755)
    cache_of(make_site(tmp_path / "site"))
    assert stat.S_IMODE((tmp_path / "hpcstack/bases").stat().st_mode) == 0o700


@root
def test_t19_a_cache_home_that_another_can_swap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(theirs / "mine"))
    with pytest.raises(StoreError, match="who can put something else in the place of"):
        cache_of(make_site(tmp_path / "site"))


@root
@pytest.mark.parametrize(
    "through",
    ["the folder itself", "a link to it", "a link above it", "a link in it, between two others"],
)
@pytest.mark.parametrize("what", ["cachedir", "user_store"])
def test_t5_a_project_folder_that_its_group_can_write(
    tmp_path: Path, what: str, through: str
) -> None:
    """root:lab 2775, as sites make them: a member swaps what lies there."""
    lab = tmp_path / "lab"
    (lab / "mine/inner").mkdir(parents=True)
    os.chown(lab, 0, 1)
    lab.chmod(0o2775)
    given = lab / "mine"
    if through == "a link to it":
        (tmp_path / "link").symlink_to(given)
        given = tmp_path / "link"
    elif through == "a link above it":
        (tmp_path / "link").symlink_to(lab)
        given = tmp_path / "link/mine/inner"
    elif through == "a link in it, between two others":
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (lab / "link").symlink_to(elsewhere)
        (tmp_path / "link").symlink_to("lab/../lab/link")
        given = tmp_path / "link"

    def use() -> None:
        if what == "cachedir":
            cache_of(make_site(tmp_path / "site", build={"cachedir": str(given)}))
            return
        site = make_site(tmp_path / "site", user_store=str(given))
        (tmp_path / "site/store").mkdir(parents=True, exist_ok=True)
        _check_own(Path(site.user_store))

    with pytest.raises(
        StoreError, match=r"lets the members of its group daemon put something else"
    ):
        use()
    lab.chmod(0o3775)
    use()


@root
def test_t5_a_link_of_another_users(tmp_path: Path) -> None:
    """In a sticky folder he alone can replace it, and he can."""
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    shared.mkdir()
    shared.chmod(0o1777)
    mine.mkdir()
    link = shared / "link"
    link.symlink_to(mine)
    files.check_way_to(link / "file", "name another")
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(StoreError, match=r"link is nobody's, who can put something else"):
        files.check_way_to(link / "file", "name another")


def test_t5_links_without_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StoreError, match="too many links"):
        files.check_way_to(tmp_path / "a/file", "name another")


@root
@pytest.mark.parametrize(
    ("group", "user", "members", "is_own"),
    [
        ("root", "root", [], True),
        ("ada", "ada", [], True),
        ("ada", "ada", ["ada"], True),
        ("ada", "ada", ["ada", "mallory"], False),
        ("users", "ada", [], False),
        ("lab", "ada", ["ada"], False),
    ],
)
def test_t5_whose_group_is_the_users_own(
    monkeypatch: pytest.MonkeyPatch, group: str, user: str, members: list[str], is_own: bool
) -> None:
    number = 0 if group == "root" else 1000
    entry = grp.struct_group((group, "x", number, members))
    person = pwd.struct_passwd((user, "x", number, number, "", "/", "/bin/sh"))
    monkeypatch.setattr(grp, "getgrgid", lambda _: entry)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: person)
    assert files._is_own_group(number) == is_own


def test_an_admins_own_link_in_the_store_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store/releases").symlink_to(tmp_path / "disk")
    place = Place(tmp_path)
    assert place.publish().release == "pytorch/24.11-r1"
    assert (tmp_path / "disk/pytorch").is_dir()
