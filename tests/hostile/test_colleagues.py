"""What a colleague of the publishing group may write, and what root then makes of it: rows T1, T3,
T4, T5 of what once got through.
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from hpcstack.build import base
from hpcstack.build.base import base_name, find_bundled_base, locate_imported_base
from hpcstack.build.engines.builtin import ENGINE
from hpcstack.build.engines.enclosure import NoEnclosure
from hpcstack.build.offline import lend_bundle
from hpcstack.build.request import BuildRequest, find_built
from hpcstack.build.workbench import Workbench
from hpcstack.core import data, lease
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.lease import Holder
from hpcstack.core.process import Runner
from hpcstack.core.progress import Progress
from hpcstack.core.sharing import Sharing
from hpcstack.lock.file import LockFile
from hpcstack.oci.client import Registry
from hpcstack.oci.importer import Imported
from hpcstack.publish import spider
from hpcstack.publish.damage import find_damage
from hpcstack.recipe.catalog import Catalog
from hpcstack.releases.records import KEPT_FILES, read_attachments
from hpcstack.releases.tree import TreeChange
from hpcstack.store.cache import cache_of, name_offline_folder, open_own_cache
from hpcstack.store.store import Store
from support.locks import example_lock
from support.modules import Place

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
MALLORY = 65534
HPCSTACK = Path(sys.executable).with_name("hpcstack")


def run_hpcstack(place: Place, *words: str, **site: object) -> subprocess.CompletedProcess[str]:
    """Run hpcstack at PLACE's site, with more of SITE in its site.yaml."""
    said = {
        "store": str(place.site.store),
        "module_root": str(place.site.module_root),
        "lock_dir": str(place.site.lock_dir),
        **site,
    }
    file = place.top / "site.yaml"
    file.write_text(yaml.safe_dump(said))
    environment = {**os.environ, "HOME": str(place.top), "HPCSTACK_SITE": str(file)}
    return subprocess.run(
        [str(HPCSTACK), *words], capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip


def give_to_mallory(path: Path) -> None:
    os.chown(path, MALLORY, MALLORY, follow_symlinks=False)


# -- T1: Lmod's spider evaluates everybody's modulefiles


@pytest.fixture
def published(tmp_path: Path) -> Place:
    """A place with a modulefile; it was not tried by Lmod, which takes a second."""
    tmp_path.chmod(0o755)
    place = Place(tmp_path)
    (place.tree.core / "pytorch").mkdir(parents=True)
    (place.tree.core / "pytorch/24.11-r1.lua").write_text('whatis("Name: pytorch")\n')
    return place


def _plant_modulefile(place: Place, code: str) -> Path:
    """Put a modulefile with CODE into the tree, and mark the spider cache stale."""
    planted = place.site.module_root / "Core/pytorch/9.9.lua"
    planted.write_text(f'whatis("Name: planted")\n{code}\n')
    stale = place.site.module_root / "spider/stale"
    stale.parent.mkdir(exist_ok=True)
    stale.touch()
    return planted


def _read_cache(place: Place) -> str:
    return (place.site.module_root / "spider/cache/spiderT.lua").read_text()


@root
@pytest.mark.lmod
@pytest.mark.parametrize("publishers", [[], ["root"]])
def test_t1_a_modulefile_of_a_colleague_is_not_run_as_root(
    published: Place, publishers: list[str]
) -> None:
    proof = published.top / "proof"
    planted = _plant_modulefile(
        published, f'os.execute("id >{proof}; id >{published.site.module_root}/spider/proof")'
    )
    give_to_mallory(planted)

    done = run_hpcstack(published, "repair", modules={"publishers": publishers})

    assert "spider cache is rebuilt" in done.stdout + done.stderr
    assert not proof.exists()
    assert not (published.site.module_root / "spider/proof").exists()
    # A stranger's modulefile is in no cache where the site says who its publishers are.
    assert ("planted" in _read_cache(published)) == (not publishers)


@root
@pytest.mark.lmod
def test_t1_what_root_wrote_and_others_may_write_is_left_out(published: Place) -> None:
    planted = _plant_modulefile(published, "")
    planted.chmod(0o664)
    run_hpcstack(published, "repair", modules={"publishers": ["root"]})
    assert "planted" not in _read_cache(published)
    assert "24.11-r1" in _read_cache(published)


@pytest.mark.lmod
def test_t1_a_modulefile_reaches_no_file_process_or_network(
    published: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can say what it sees only by what it prints: so it puts that into its own description."""
    secret = published.top / "home/secret"
    secret.parent.mkdir(mode=0o700)
    secret.write_text("a secret")
    monkeypatch.setenv("A_SECRET", "of the environment")
    look = f"cat {secret}; env; ls /home /root /run /tmp; cat /proc/net/dev; ls /proc; id -u; echo >{published.top}/x"
    _plant_modulefile(
        published, f'local p = io.popen([[{look}]]); whatis("Description: " .. p:read("*a"))'
    )
    spider.rebuild_cache(published.tree, published.publisher.runner)
    seen = _read_cache(published)
    assert "planted" in seen
    assert "a secret" not in seen
    assert "of the environment" not in seen
    assert "eth0" not in seen
    assert not (published.top / "x").exists()


@pytest.mark.lmod
@pytest.mark.parametrize(
    "code",
    [
        "os.execute([[echo 'os.execute(1)']])",
        "os.execute([[echo 'os = {}']])",
        "os.execute([[cat /dev/zero]])",
    ],
)
def test_t1_what_lmod_is_made_to_print_becomes_no_cache(
    published: Place, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(spider, "MOST_CACHE", 8 << 20)
    _plant_modulefile(published, code)
    said = spider.rebuild_cache(published.tree, published.publisher.runner)
    assert "NOT rebuilt" in said
    assert not (published.site.module_root / "spider/cache/spiderT.lua").exists()
    assert published.tree.stale


@root
@pytest.mark.lmod
@pytest.mark.parametrize("is_link", [False, True])
def test_t1_a_tree_below_a_folder_that_each_enclosure_shows(
    tmp_path: Path, *, is_link: bool
) -> None:
    """In /opt nothing can be made where an enclosure mounts, and a tree without gateways has no
    `more`. Many sites have a link there to what all nodes share.
    """
    with tempfile.TemporaryDirectory(dir="/opt", prefix="hpcstack-tree-") as name:
        Path(name).chmod(0o755)
        apps = Path(name, "apps")
        if is_link:
            tmp_path.chmod(0o755)
            apps.symlink_to(tmp_path)
        place = Place(apps)
        (place.tree.core / "pytorch").mkdir(parents=True)
        mine = place.tree.core / "pytorch/24.11-r1.lua"
        mine.write_text('whatis("Name: pytorch")\n')
        give_to_mallory(_plant_modulefile(place, ""))
        place = place.with_publishers("root")
        said = spider.rebuild_cache(place.tree, place.publisher.runner)
        assert said == "the spider cache is rebuilt"
        assert "24.11-r1" in _read_cache(place)
        assert "planted" not in _read_cache(place)


@pytest.mark.lmod
def test_t1_without_an_enclosure_there_is_no_cache(
    published: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    spider.rebuild_cache(published.tree, published.publisher.runner)
    assert "24.11-r1" in _read_cache(published)
    old = published.site.module_root / "spider/cache/spiderT.luac_5.3"
    old.write_text("what Lmod's own tool made once")

    def refuse(*_: object, **__: object) -> bytes:
        raise NoEnclosure("this machine lets no enclosure be made: as if")

    monkeypatch.setattr(spider, "run_strangers_code", refuse)
    said = spider.rebuild_cache(published.tree, published.publisher.runner)
    assert "NOT rebuilt" in said
    assert "Lmod reads the modulefiles themselves" in said
    assert not list((published.site.module_root / "spider/cache").iterdir())


# -- a lease that a colleague holds for ever


@pytest.fixture
def shared_lease(tmp_path: Path) -> Path:
    """A lease that another member has put there, with a text of theirs."""
    path = tmp_path / "leases/k"
    path.parent.mkdir()
    path.parent.chmod(0o777)
    return path


def write_strangers_lease(path: Path, holder: Holder) -> None:
    path.write_text(str(holder))
    os.chown(path, MALLORY, MALLORY)


@root
def test_a_publisher_waits_for_nobody_who_is_none(shared_lease: Path) -> None:
    """It names a process that lives for ever, and its heartbeat would go on."""
    write_strangers_lease(shared_lease, lease.identify_process())
    publishers = Sharing(None, frozenset({0}))
    began = time.monotonic()
    with lease.hold_lease(shared_lease, sharing=publishers) as held:
        assert held
        assert shared_lease.stat().st_uid == 0
    assert time.monotonic() - began < 5


@root
def test_a_process_of_somebody_else_is_no_sign_of_life(
    shared_lease: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease names the machine's first process, and nobody renews it."""
    monkeypatch.setattr(lease, "PATIENCE_S", 0.3)
    started = lease._start_time("1")
    write_strangers_lease(shared_lease, replace(lease.identify_process(), pid="1", start=started))
    with lease.hold_lease(shared_lease) as held:
        assert held


@root
def test_whose_file_it_is_may_be_wrong_where_a_heartbeat_says_that_somebody_lives(
    shared_lease: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a file server gives root's files to another user."""
    monkeypatch.setattr(lease, "PATIENCE_S", 0.3)
    write_strangers_lease(shared_lease, replace(lease.identify_process(), pid="1"))
    text = str(replace(lease.identify_process(), pid="1", start=lease._start_time("1")))
    shared_lease.write_text(text)
    watch = lease.Watch(shared_lease)
    for _ in range(10):
        shared_lease.touch()
        assert not watch.dead(text)
        time.sleep(0.1)


def test_a_wait_without_end_names_whose_lease_it_is(
    shared_lease: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "MOST_WAIT_S", 0.5)
    shared_lease.write_text(str(lease.identify_process()))
    with (
        pytest.raises(StoreError, match=r"has held .*leases/k for more than") as caught,
        lease.hold_lease(shared_lease),
    ):
        pass
    assert f"rm {shared_lease}" in caught.value.hint
    assert list(shared_lease.parent.iterdir()) == [shared_lease], "nothing of the waiter's is left"


def test_a_change_whose_lease_was_broken_is_not_made(place: Place) -> None:
    place.publish()
    tree, name = place.tree, "pytorch"
    before = tree.ledger(name)
    with tree.hold(name):
        change = TreeChange(tree.ledger(name, to_change=True), {}, "repair")
        (tree.root / "state" / name / "lease").unlink()
        with pytest.raises(StoreError, match="somebody has taken over pytorch meanwhile"):
            tree.commit(change)
    assert tree.ledger(name) == before
    with tree.hold(name):
        tree.commit(TreeChange(tree.ledger(name, to_change=True), {}, "repair"))


# -- T3: an image in the store of the group


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A site with a group, whose publisher is root; members are all who are in root's group."""
    tmp_path.chmod(0o755)
    group = grp.getgrgid(os.getegid()).gr_name
    return Place(tmp_path, group=group, modules={"publishers": ["root"]})


IN_AN_IMAGE = ("", "artifact.json", "image.sqsh")


@root
@pytest.mark.parametrize("part", IN_AN_IMAGE)
def test_t3_a_strangers_image_is_none(place: Place, part: str) -> None:
    stack = place.stack()
    image = place.artifact(stack)
    folder = place.store.top / "images" / image.key
    give_to_mallory(folder / part)

    with pytest.raises(StoreError, match="nobody, who is no publisher"):
        place.store.artifact(image.key)
    with pytest.raises(StoreError, match="nobody, who is no publisher"):
        place.store.newest(stack.full_name)
    assert place.store.images() == []
    assert place.store.list_damaged() == [folder]


@root
@pytest.mark.parametrize("part", ["artifact.json", "image.sqsh"])
def test_t3_what_a_member_could_write_to_is_no_image(place: Place, part: str) -> None:
    image = place.artifact(place.stack())
    path = place.store.top / "images" / image.key / part
    assert not stat.S_IMODE(path.stat().st_mode) & 0o022, "the store itself writes it so"
    path.chmod(0o664)
    with pytest.raises(StoreError, match="can be written by others than its owner"):
        place.store.artifact(image.key)


@root
def test_t3_publish_refuses_it_and_a_build_makes_it_anew(place: Place) -> None:
    """At the command line: the image was built, and tested, by somebody who is no publisher."""
    stack = place.stack("miniforge-26.3")
    lock = example_lock(stack)
    place.site.lock_dir.mkdir()
    (place.site.lock_dir / f"{stack.full_name}.lock.json").write_text(lock.file_text())
    order = BuildRequest(stack, lock, place.site, "linux/amd64", ENGINE)
    image = place.artifact(stack, b"mallory's", key=order.key)
    for path in (Path(image.folder), *Path(image.folder).iterdir()):
        give_to_mallory(path)

    site = {"group": place.site.group, "modules": {"publishers": ["root"]}}
    done = run_hpcstack(place, "publish", stack.full_name, **site)
    assert done.returncode != 0
    assert "nobody, who is no publisher" in done.stderr
    assert "it is made anew" in done.stderr
    assert not (place.site.module_root / "Core").exists()
    assert find_built(order, place.store) is None, "a build does not take it for built"

    with pytest.raises(StoreError, match="no publisher"):
        place.artifact(stack, b"root's own", key=order.key)
    made, log = place.top / "made", place.top / "log"
    made.write_bytes(b"mallory's")
    log.touch()
    stored = place.store.put(image, made, log, instead=True)
    assert stored.image.stat().st_uid == 0


@root
def test_t3_a_strangers_pointer_to_the_newest_image_is_not_followed(place: Place) -> None:
    stack = place.stack()
    old, new = place.artifact(stack, b"old"), place.artifact(stack, b"new")
    pointer = place.store.top / "stacks" / stack.full_name
    assert place.store.newest(stack.full_name) == new
    pointer.write_text(f"{old.key}\n")
    give_to_mallory(pointer)
    assert place.store.newest(stack.full_name) is None


def test_t3_an_image_under_the_key_of_another_is_none(tmp_path: Path) -> None:
    """A member of the group may rename the folders of two images, which are root's both."""
    place = Place(tmp_path)
    old, new = place.artifact(place.stack(), b"old"), place.artifact(place.stack(), b"new")
    images = place.store.top / "images"
    (images / new.key).rename(images / "aside")
    (images / old.key).rename(images / new.key)
    with pytest.raises(StoreError, match="holds another image"):
        place.store.artifact(new.key)


@root
def test_t3_whoever_publishes_nothing_still_uses_an_image_of_their_own(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = place.artifact(place.stack())
    for path in (Path(image.folder), *Path(image.folder).iterdir()):
        give_to_mallory(path)
    with pytest.raises(StoreError):
        place.store.artifact(image.key)
    monkeypatch.setattr(os, "geteuid", lambda: MALLORY)
    assert place.store.artifact(image.key) == image


@root
def test_a_strangers_lock_in_the_sites_folder_builds_nothing(place: Place) -> None:
    """As T3 and T4: a lock says on which base, and of which packages, root's image is."""
    recipe = Catalog([data.find_data_folder("recipes")]).find("miniforge-26.3")
    file = LockFile(recipe, place.site)
    path = file.write(example_lock(recipe.stack))
    assert path.parent == place.site.lock_dir
    assert not path.stat().st_mode & 0o022
    assert file.read()
    give_to_mallory(path)
    with pytest.raises(InputError, match="nobody, who is no publisher"):
        file.current()


# -- T4: a base in the cache of the group


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "roots"))
    return tmp_path / "roots"


@root
@pytest.mark.parametrize(
    ("how", "is_used"),
    [
        ("root's", True),
        ("mallory's", False),
        ("written by others", False),
        ("a link", False),
        ("in a folder of mallory's", False),
        ("in a folder that is not sticky", False),
    ],
)
def test_t4_a_strangers_base_is_not_built_on(
    place: Place, own_cache: Path, how: str, is_used: bool
) -> None:
    lock = example_lock(place.stack())
    cache = cache_of(place.site)
    assert stat.S_IMODE(cache.top.stat().st_mode) == 0o3775
    imported = cache.top / base_name(lock, "linux/amd64", place.site)
    imported.write_bytes(b"a base")
    if how == "mallory's":
        give_to_mallory(imported)
    elif how == "written by others":
        imported.chmod(0o664)
    elif how == "a link":
        imported.rename(cache.top / "elsewhere")
        imported.symlink_to("elsewhere")
    elif how == "in a folder of mallory's":
        give_to_mallory(cache.top)
    elif how == "in a folder that is not sticky":
        cache.top.chmod(0o2775)
        os.chown(cache.top, 1, -1)  # whose owner has not run hpcstack since
        place = Place(place.top, group=place.site.group, modules={"publishers": ["1"]})

    found = locate_imported_base(lock, "linux/amd64", place.site)

    expected = cache.top if is_used else open_own_cache(place.site).top
    assert found.parent == expected


@root
def test_t4_a_base_that_appears_while_its_lease_is_waited_for(
    place: Place, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member holds the lease, puts a file of theirs there, and lets go."""
    lock = example_lock(place.stack())
    shared = locate_imported_base(lock, "linux/amd64", place.site)
    assert shared.parent == cache_of(place.site).top

    @contextlib.contextmanager
    def lease(*_: object, **__: object) -> Iterator[None]:
        shared.write_bytes(b"mallory's")
        give_to_mallory(shared)
        yield

    def pack(_source: object, final: Path, *_: object, **__: object) -> Imported:
        final.write_bytes(b"the registry's")
        return Imported(final, 14, None, 0.0, 1)  # type: ignore[arg-type]

    image = SimpleNamespace(image=SimpleNamespace(digest="sha256:" + "0" * 64))
    monkeypatch.setattr(base, "open_source", lambda *_: image)
    monkeypatch.setattr(base, "pack_image", pack)
    monkeypatch.setattr(Store, "lease", lease)
    bench = Workbench(place.site, Registry(place.site), Runner(), Progress())
    found = base.provide_base(lock, "linux/amd64", bench)
    assert found.read_bytes() == b"the registry's"
    assert found.parent == open_own_cache(place.site).top


@root
def test_names_at_the_top_of_the_store_are_their_makers(place: Place) -> None:
    """Who could rename STORE/cache would have another folder in its place."""
    place.publish()
    for top in (place.site.store, place.site.module_root):
        assert top.stat().st_mode & stat.S_ISVTX, top


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A temporary folder that other users can enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@root
@pytest.mark.parametrize("what", ["image.sqsh", ""])
def test_t3_an_images_name_is_not_given_to_another_while_a_job_waits(
    reachable: Path, what: str
) -> None:
    """A launch looks at it, and the job runs it hours later, by its name."""
    group = grp.getgrgid(os.getegid()).gr_name
    place = Place(reachable, group=group, modules={"publishers": ["root"]})
    place.publish()
    artifact = place.store.newest("pytorch-24.11")
    assert artifact
    folder = artifact.image.parent
    name = folder / what if what else folder
    try_it = (
        "import os, sys\n"
        f"os.setgid({os.getegid()}); os.setgroups([]); os.setuid({MALLORY})\n"
        f"open({str(folder / 'note')!r}, 'w').close()\n"  # a member he is
        f"os.rename({str(name)!r}, {str(name) + '.away'!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", try_it], capture_output=True, text=True, cwd="/"
    )
    assert "PermissionError: [Errno 1] Operation not permitted" in done.stderr
    assert (folder / "note").exists()
    assert artifact.image.exists()


@root
@pytest.mark.parametrize("name", KEPT_FILES)
def test_a_strangers_modulefile_does_not_come_back(place: Place, name: str) -> None:
    """`undo` and `repair` would write it into the tree, as root's own."""
    place.publish()
    place.publish(content=b"two")
    ledger = place.tree.ledger("pytorch")
    removed = replace(
        ledger, entries=tuple(replace(one, state="removed") for one in ledger.entries)
    )
    kept = place.store.releases / "pytorch/24.11-r1" / name
    assert kept.is_file()
    give_to_mallory(kept)
    with pytest.raises(InputError, match="nobody, who is no publisher"):
        place.publisher._read_returning_modulefiles(removed, ledger)
    for inventory in kept.parent.glob("inventory*"):
        inventory.unlink()
    for path in place.site.module_root.rglob("24.11-r1*"):
        path.write_text("damaged")
    texts = [one.text for one in find_damage(place.tree, place.store, "pytorch")]
    assert not any(text == kept.read_text() for text in texts)


@root
def test_a_strangers_sbom_is_not_taken_into_the_next_release(place: Place) -> None:
    place.publish()
    sbom = place.store.releases / "pytorch/24.11-r1/sbom.json"
    sbom.write_text("{}")
    assert read_attachments(place.store, "pytorch", "24.11-r1")
    give_to_mallory(sbom)
    with pytest.raises(InputError, match="nobody, who is no publisher"):
        read_attachments(place.store, "pytorch", "24.11-r1")


@pytest.mark.lmod
def test_t1_a_pipe_in_the_place_of_lmodrc_is_not_waited_for(published: Place) -> None:
    rc = published.site.module_root / "spider/lmodrc.lua"
    rc.parent.mkdir()
    os.mkfifo(rc)
    said = spider.rebuild_cache(published.tree, published.publisher.runner)
    assert said == "the spider cache is rebuilt"
    assert "scDescriptT" in rc.read_text()


@root
def test_t4_the_base_and_the_packages_of_a_bundle(
    place: Place, own_cache: Path, tmp_path: Path
) -> None:
    stack = place.stack()
    lock = example_lock(stack)
    folder = name_offline_folder(place.site, lock, "linux/amd64")
    folder.mkdir(parents=True)
    bundled = folder / f"base-{'0' * 64}.sqsh"
    bundled.write_bytes(b"a base")
    package = folder / "a_1_all.deb"
    package.write_bytes(b"a package")
    assert find_bundled_base(lock, "linux/amd64", place.site) == bundled
    give_to_mallory(bundled)
    assert find_bundled_base(lock, "linux/amd64", place.site) is None

    order = BuildRequest(stack, lock, place.site, "linux/amd64", ENGINE)
    (tmp_path / "lent").mkdir()
    lend_bundle(tmp_path / "lent", order)
    assert (tmp_path / "lent/packages/a_1_all.deb").read_bytes() == b"a package"
    give_to_mallory(package)
    (tmp_path / "again").mkdir()
    with pytest.raises(InputError, match="nobody, who is no publisher"):
        lend_bundle(tmp_path / "again", order)


def test_t4_a_link_among_a_bundles_packages_is_not_followed(
    tmp_path: Path, own_cache: Path
) -> None:
    """With or without publishers: it would hand a file of the builder's to a step."""
    place = Place(tmp_path)
    stack = place.stack()
    lock = example_lock(stack)
    folder = name_offline_folder(place.site, lock, "linux/amd64")
    folder.mkdir(parents=True)
    (tmp_path / "secret").write_text("root's")
    (folder / "a_1_all.deb").symlink_to(tmp_path / "secret")
    (tmp_path / "lent").mkdir()
    with pytest.raises(InputError, match="symbolic link"):
        lend_bundle(tmp_path / "lent", BuildRequest(stack, lock, place.site, "linux/amd64", ENGINE))


@root
def test_files_are_their_publishers_alone_and_folders_are_the_groups(place: Place) -> None:
    place.publish()
    for top in (place.site.store, place.site.module_root):
        for path in top.rglob("*"):
            mode = stat.S_IMODE(path.lstat().st_mode)
            if path.is_file() and not path.is_symlink():
                assert not mode & 0o022, path
    assert (place.site.module_root / "Core/pytorch").stat().st_mode & 0o020
    assert place.store.releases.stat().st_mode & 0o020
    assert Store(place.site.store, sharing=place.site.sharing).newest("pytorch-24.11")
    assert json.loads((place.site.module_root / "state/pytorch/current/ledger.json").read_text())
