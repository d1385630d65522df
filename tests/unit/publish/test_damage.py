"""What `status --check` sees of a tree that somebody damaged, and what `repair` puts back.

The property: whatever is deleted, edited, cut or swapped among what publish wrote is seen, and is
as before after a repair, or is named. HPCSTACK_DAMAGES: how many random damages (50; ci/soak
2,000).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.progress import Progress
from hpcstack.core.sharing import Sharing
from hpcstack.publish.damage import Damage, find_damage, find_touched_images, list_names_with_traces
from hpcstack.publish.read_images import check_published
from hpcstack.publish.repair import repair_names, restore_generation
from hpcstack.releases.inventory import read_inventory, render_inventory_files
from hpcstack.releases.seal import SEAL
from hpcstack.store.artifact import IMAGE
from support.modules import Place, bash, seen, tree_of

DAMAGES = int(os.environ.get("HPCSTACK_DAMAGES", "50"))


def damage(place: Place) -> list[Damage]:
    return [
        one
        for name in list_names_with_traces(place.tree)
        for one in find_damage(place.tree, place.store, name)
    ]


def mend(place: Place) -> list[Damage]:
    """What is left after a repair of everything."""
    return list(repair_names(place.publisher, list_names_with_traces(place.tree)).left)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which images were read last is remembered there."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Two names, one of them with two releases of a version, one behind a gateway."""
    place = Place(tmp_path, modules={"direct": ["pytorch"]})
    place.publish(content=b"one")
    place.publish(content=b"two")
    place.publish("jax-25.04", content=b"three")
    return place


def shown(place: Place) -> dict[str, str]:
    """All that is published, but for what a repair may write anew: generations, and the cache."""
    trees = {**tree_of(place.site.module_root), **tree_of(place.store.top / "releases")}
    return {
        path: text for path, text in trees.items()
        if "/state/" not in f"/{path}" and "spider/" not in path and not path.endswith(("lease", "lease.lock", SEAL))
    }  # fmt: skip


def modulefile(place: Place, release: str = "24.11-r2", suffix: str = ".lua") -> Path:
    return place.tree.homes("pytorch")[suffix] / "pytorch" / f"{release}{suffix}"


def test_a_tree_that_nobody_touched_is_well(place: Place) -> None:
    assert damage(place) == []
    assert mend(place) == []


@pytest.mark.lmod
def test_a_modulefile_that_is_gone_is_seen_and_comes_back(place: Place) -> None:
    """admin 1: the production default's modulefile was removed, `status --check` said 0, and users
    got another version.
    """
    before = shown(place)
    modulefile(place).unlink()
    (one,) = damage(place)
    assert one.subject == "pytorch/24.11-r2"
    assert f"{modulefile(place)} is gone" in one.what
    assert one.remedy == "hpcstack repair pytorch/24.11-r2"
    assert mend(place) == []
    assert shown(place) == before
    assert "pytorch/24.11" in seen(place, "lmod")
    assert (
        bash(place, "lmod", "module load pytorch/24.11 && echo $HPCSTACK_RELEASE").stdout.strip()
        == "pytorch/24.11-r2"
    )


def edit(path: Path) -> None:
    path.write_text(path.read_text() + "-- by hand\n")


@pytest.mark.parametrize(
    ("where", "how"),
    [
        ("modules/Core/pytorch/24.11-r1.lua", edit),
        ("modules/Tcl/pytorch/24.11-r2", Path.unlink),
        ("modules/Core/pytorch/.modulerc.lua", Path.unlink),
        ("modules/state/pytorch/current/modulerc.lua", edit),
        ("modules/state/pytorch/current/modulerc", Path.unlink),
        ("modules/Core/hpcstack/jax.lua", edit),
        ("modules/state/pytorch/current/ledger.json", lambda path: path.write_text('{"form')),
        ("store/releases/pytorch/24.11-r2/libexec/run", edit),
        ("store/releases/pytorch/24.11-r2/release.json", Path.unlink),
        ("store/releases/pytorch/24.11-r2/inventory.json", edit),
        (
            "store/releases/pytorch/24.11-r2/inventory.json",
            lambda path: path.write_text(path.read_text().rstrip()),
        ),
        ("store/releases/pytorch/24.11-r2/modulefile.lua", Path.unlink),
    ],
)
def test_what_a_verb_wrote_is_compared_and_put_back(
    place: Place, where: str, how: Callable[[Path], object]
) -> None:
    before = shown(place)
    how(place.top / where)
    assert damage(place), "nothing is seen"
    assert mend(place) == []
    assert damage(place) == []
    assert shown(place) == before


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(place: Place) -> None:
    victim = place.top / "victim"
    victim.write_text("mine\n")
    modulefile(place).unlink()
    modulefile(place).symlink_to(victim)
    assert "no ordinary file" in damage(place)[0].what
    assert mend(place) == []
    assert victim.read_text() == "mine\n"
    assert not modulefile(place).is_symlink()


@pytest.mark.parametrize("path", ["../../../../victim", "/victim", "a/../../x", "./x", ""])
def test_an_inventorys_paths_are_never_believed(place: Place, path: str) -> None:
    """Who may write into a release's folder may write an inventory, with a digest that fits: repair
    would write as him who repairs, wherever it says.
    """
    folder = place.store.top / "releases/pytorch/24.11-r2"
    planted = render_inventory_files("pytorch/24.11-r2", {path: "evil"})
    for name, text in planted.items():
        (folder / name).write_text(text)
    before = shown(place)
    (left,) = mend(place)
    assert "no path below its folder" in left.what
    assert shown(place) == before


def test_an_inventory_of_somebody_who_is_no_publisher_counts_for_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = place.store.top / "releases/pytorch/24.11-r2"
    monkeypatch.setattr(Sharing, "is_publisher", lambda _sharing, _number: False)
    with pytest.raises(StoreError, match="is damaged"):
        read_inventory(folder, "pytorch/24.11-r2", Sharing(publishers=frozenset()))


def test_a_first_publish_that_was_interrupted_is_not_lost(place: Place) -> None:
    """Its generations are there before `current` is: `repair --generation` would have thrown the
    rest of it away.
    """
    state = place.site.module_root / "state/new"
    shutil.copytree(place.site.module_root / "state/pytorch/current", state / "1")
    (state / "journal.json").write_text("{}")
    assert not [one for one in damage(place) if one.subject == "new"]
    with pytest.raises(InputError, match="was interrupted"):
        restore_generation(place.publisher, "new", 1)
    assert not (state / "current").exists()


def test_a_state_that_leads_elsewhere_is_told_and_not_followed(place: Place) -> None:
    """A member of the group lets `current` lead to a folder of his own, with a ledger and an
    inventory that fit.
    """
    state = place.site.module_root / "state/pytorch"
    elsewhere = place.top / "elsewhere"
    shutil.copytree(state / "current", elsewhere)
    (state / "current").unlink()
    (state / "current").symlink_to("../../../elsewhere")
    before = tree_of(elsewhere)
    (left,) = [one for one in mend(place) if one.subject == "pytorch"]
    assert "does not lead to one of its own generations" in left.what
    assert "--generation" in left.remedy
    assert tree_of(elsewhere) == before


def test_a_generation_that_is_not_whole_is_not_restored(place: Place) -> None:
    state = place.site.module_root / "state/pytorch"
    before = (state / "current").readlink()
    torn = min(int(path.name) for path in state.iterdir() if path.name.isdigit())
    (state / str(torn) / "ledger.json").write_text("{")
    with pytest.raises(InputError, match="is not whole"):
        restore_generation(place.publisher, "pytorch", torn)
    assert (state / "current").readlink() == before
    assert damage(place) == []


def test_a_modulefile_that_nobody_published_is_named_and_stays(place: Place) -> None:
    stranger = modulefile(place).with_name("25.01-r9.lua")
    stranger.write_text("-- mine\n")
    (one,) = mend(place)
    assert str(stranger) in one.what
    assert one.remedy == f"rm {stranger}"
    assert stranger.exists()


def test_a_name_whose_state_is_gone_is_named(place: Place) -> None:
    shutil.rmtree(place.site.module_root / "state/pytorch")
    (one,) = mend(place)
    assert one.subject == "pytorch"
    assert "from a backup" in one.remedy


def test_a_ledger_without_any_copy_has_an_earlier_generation(place: Place) -> None:
    """admin 18: a torn ledger made the whole check fail, and generations lay beside it."""
    current = place.site.module_root / "state/pytorch/current"
    number = int(current.readlink().name)
    for path in current.resolve().iterdir():
        if path.is_file():
            path.write_text("{")
    (one,) = mend(place)
    assert one.remedy == f"hpcstack repair pytorch --generation {number - 1}", one
    restore_generation(place.publisher, "pytorch", number - 1)
    assert not [left for left in mend(place) if left.subject == "pytorch"]


def test_one_flipped_byte_of_an_image_is_found_by_reading_it(place: Place) -> None:
    artifact = place.store.artifact(place.tree.ledger("pytorch").entry("24.11-r2").key)
    assert artifact
    content, about = bytearray(artifact.image.read_bytes()), artifact.image.stat()
    content[1] ^= 1
    artifact.image.chmod(0o644)
    artifact.image.write_bytes(content)
    os.utime(artifact.image, ns=(about.st_atime_ns, about.st_mtime_ns))
    wrong = [
        one.release for one in check_published(place.site, place.store, Progress()) if one.wrong
    ]
    assert wrong == ["pytorch/24.11-r2"]
    assert (
        damage(place) == [] and len(find_touched_images(place.tree, place.store, "pytorch")) == 1
    ), "it was touched"
    artifact.image.write_bytes(content)
    assert [one.repair for one in damage(place)] == ["image"], (
        "its times say that somebody wrote to it"
    )


def test_the_verbs(place: Place) -> None:
    site = place.top / "site.yaml"
    site.write_text(
        f"store: {place.site.store}\nlock_dir: {place.site.lock_dir}\nmodule_root: "
        f"{place.site.module_root}\n"
        "modules: {direct: [pytorch]}\n"
    )

    def verb(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "hpcstack", "--site", str(site), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    assert verb("status", "--check").returncode == 0
    modulefile(place).unlink()
    checked = verb("status", "--check")
    assert checked.returncode == 1
    assert f"{modulefile(place)} is gone: hpcstack repair pytorch/24.11-r2" in checked.stdout
    dry = json.loads(verb("repair", "--dry-run", "--json").stdout)
    assert len(dry["mended"]) == 1
    assert dry["left"] == []
    assert not modulefile(place).exists()
    assert verb("repair", "jax").returncode == 0 and not modulefile(place).exists(), (
        "of another name alone"
    )
    assert verb("repair").returncode == 0
    assert verb("status", "--check").returncode == 0
    assert verb("repair", "no-such-name").returncode == 2
    refused = verb("repair", "pytorch/24.11")
    assert refused.returncode == 2 and "is a version" in refused.stderr, refused
    modulefile(place).with_name("9-r1.lua").write_text("x")
    assert verb("repair").returncode == 1


# -- whatever somebody damages


def _delete(path: Path, _: random.Random, __: list[Path]) -> None:
    path.unlink()


def _edit(path: Path, chance: random.Random, _: list[Path]) -> None:
    content = bytearray(path.read_bytes()) or bytearray(b"x")
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _cut(path: Path, chance: random.Random, _: list[Path]) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))] if content else b"x")


def _swap(path: Path, chance: random.Random, others: list[Path]) -> None:
    """PATH and another file are each in the other's place."""
    other = chance.choice([one for one in others if one.read_bytes() != path.read_bytes()])
    mine, its = path.read_bytes(), other.read_bytes()
    path.write_bytes(its)
    other.write_bytes(mine)


def damage_of_images(place: Place) -> list[Damage]:
    """What is wrong with the images, all of which are read."""
    read = [one for one in check_published(place.site, place.store, Progress()) if one.wrong]
    return [Damage(one.release, one.wrong, "", "image") for one in read]


def published_images(place: Place) -> list[Path]:
    return sorted((place.store.top / "images").glob(f"*/{IMAGE}"))


def published_files(place: Place) -> list[Path]:
    """What publish wrote and users or verbs read: modulefiles, the current state, the releases'
    folders.
    """
    tops = (place.site.module_root / "Core", place.site.module_root / "Tcl", place.site.module_root / "more",
            *(path.resolve() for path in (place.site.module_root / "state").glob("*/current")),
            place.store.top / "releases")  # fmt: skip
    return sorted(
        path for top in tops for path in top.rglob("*")
        if path.is_file() and not path.is_symlink() and not path.name.startswith(".lease") and path.name != SEAL
    )  # fmt: skip


def test_whatever_is_damaged_is_seen_and_put_back_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "hpcstack.publish.repair.rebuild_cache", lambda *_: ""
    )  # Lmod's own program takes a second
    place = Place(tmp_path / "place", modules={"direct": ["pytorch"]})
    place.publish(content=b"one")
    place.publish(content=b"two")
    place.publish("jax-25.04", content=b"three")
    kept = tmp_path / "kept"
    for folder in ("modules", "store"):
        shutil.copytree(place.top / folder, kept / folder, symlinks=True)
    before, mended, of_images = shown(place), 0, 0
    for turn in range(DAMAGES):
        chance = random.Random(turn)
        is_image = chance.random() < 0.2
        files = published_images(place) if is_image else published_files(place)
        act = chance.choice([_delete, _edit, _cut, _swap])
        path = chance.choice(files)
        act(path, chance, files)
        where = f"turn {turn}: {act.__name__} {path.relative_to(place.top)}"
        assert damage(place) or (is_image and damage_of_images(place)), f"{where}: not seen"
        if (
            is_image
        ):  # whether its bytes can be made again is tests/integration/test_rebuilding.py's
            of_images += 1
            left = [*mend(place), *damage_of_images(place)]
            assert left and all("/" in one.subject for one in left), (
                f"{where}: not named, with its release"
            )
        elif not mend(place):
            mended += 1
            assert damage(place) == [], where
            assert shown(place) == before, where
            continue
        for folder in ("modules", "store"):
            shutil.rmtree(place.top / folder)
            shutil.copytree(kept / folder, place.top / folder, symlinks=True)
        for name in (
            "pytorch",
            "jax",
        ):  # the copies of images are other files than those that were read
            for entry in place.tree.ledger(name).entries:
                place.publisher.renew_image_seal(name, entry, place.store.artifact(entry.key))  # type: ignore[arg-type]
    assert mended >= (DAMAGES - of_images) * 0.9, (
        f"{mended} of {DAMAGES - of_images} files were put back"
    )
    assert of_images
