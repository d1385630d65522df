"""Publishing that is killed, and publishing while thousands load: the tree is the old one or the
new one.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcstack.releases.journal import name_prepared
from support.modules import Place, bash, clean, environment, seen, system, tree_of, whole

KILLS = int(os.environ.get("HPCSTACK_KILLS", "2"))
PUBLISHES = int(os.environ.get("HPCSTACK_PUBLISHES", "4"))
LOADS = 10 * PUBLISHES
pytestmark = [pytest.mark.faults, pytest.mark.lmod, pytest.mark.timeout(3000)]

# One verb in a process of its own, so that it can be killed
VERB = """\
import sys
from pathlib import Path
from support.modules import Place
place = Place(Path(sys.argv[1]))
verb, content = sys.argv[2], sys.argv[3].encode()
if verb == "publish":
    place.publish(content=content)
elif verb == "promote":
    stack = place.stack()
    place.publisher.publish(stack, place.artifact(stack, content), "production", None, {})
elif verb == "rollback":
    from hpcstack.releases.changes import roll_back_version
    place.publisher.change("pytorch", verb, lambda ledger, event: roll_back_version(ledger, "24.11", "", event), force=True)
elif verb == "remove":
    from hpcstack.publish import publisher
    from hpcstack.releases.changes import remove_releases
    publisher.find_users = lambda *_, **__: []  # others on this machine name pytorch, too
    place.publisher.change("pytorch", verb, lambda ledger, event: remove_releases(ledger, ["24.11-r2"], event), force=True)
elif verb == "undo":
    from hpcstack.releases.changes import undo_changes
    place.publisher.change("pytorch", verb, undo_changes, force=True)
elif verb in ("retire", "cancel"):
    from hpcstack.releases.changes import retire_version
    from hpcstack.releases.ledger import Dates
    dates = Dates("2020-01-01", "2020-01-02") if verb == "retire" else Dates()
    place.publisher.change("pytorch", verb, lambda ledger, event: retire_version(ledger, "24.11", dates, "2026-01-01", event), force=True)
"""


def verb(place: Place, what: str, content: str = "x") -> list[str]:
    return [sys.executable, "-c", VERB, str(place.top), what, content]


def ready(top: Path) -> Place:
    """A tree with a production release and a newer one in testing."""
    place = Place(top)
    place.publish(content=b"one")
    stack = place.stack()
    place.publisher.publish(stack, place.artifact(stack, b"one"), "production", None, {})
    place.publish(content=b"two")
    return place


def view(place: Place) -> tuple[str, ...]:
    """What users see: by both module systems, and what the alias and the default are."""
    loads = (
        "module load pytorch/24.11; echo $HPCSTACK_RELEASE; module purge; module load pytorch; "
        "echo $HPCSTACK_RELEASE"
    )
    return seen(place, "lmod"), seen(place, "emodules"), bash(place, "lmod", loads).stdout


@pytest.mark.emodules
@pytest.mark.parametrize(
    "what",
    [
        "publish",
        *(
            pytest.param(verb, marks=pytest.mark.soak("all verbs commit by one function"))
            for verb in ("promote", "rollback", "retire", "remove", "undo")
        ),
    ],
)
def test_a_verb_that_is_killed_leaves_the_old_tree_or_the_new_one(
    tmp_path: Path, what: str
) -> None:
    """SIGKILL at moments drawn over the measured duration; then the next verb finishes or undoes."""
    import shutil

    template = tmp_path / "template"
    content = "two" if what == "promote" else "three"
    measured = ready(template / "measured")
    old = view(measured)
    began = time.monotonic()
    subprocess.run(verb(measured, what, content), env=environment(), check=True)
    took = time.monotonic() - began
    new = view(measured)
    assert old != new
    draw, seen_states = random.Random(what), {"old": 0, "new": 0}
    for number in range(KILLS):
        place = ready(tmp_path / f"{what}{number}")
        with subprocess.Popen(verb(place, what, content), env=environment()) as process:
            # the beginning is Python's own start: moments are drawn from where anything can happen
            # on
            time.sleep(draw.uniform(0.15 * took, 1.05 * took))
            process.kill()
        now = tuple(text.replace(str(place.top), str(measured.top)) for text in view(place))
        assert now in (old, new), f"between: {now}"
        seen_states["new" if now == new else "old"] += 1
        for one in place.tree.names():
            with place.tree.hold(one):
                pass
        after = tuple(text.replace(str(place.top), str(measured.top)) for text in view(place))
        assert after in (old, new)
        subprocess.run(verb(place, "cancel"), env=environment(), check=True)
        subprocess.run(verb(place, "publish", f"again{number}"), env=environment(), check=True)
        whole(place)
        shutil.rmtree(place.top)
    print(f"{what}: {KILLS} kills over {took:.2f} s: {seen_states}")


def test_loads_during_publishes_see_only_whole_modules(tmp_path: Path) -> None:
    """Each load is of one release whole: its variables and its folder on PATH agree, and nothing is
    said.
    """
    place = ready(tmp_path)
    script = f'for n in $(seq {LOADS}); do env -i PATH=/usr/bin:/bin HOME="$HOME" MODULEPATH="$MODULEPATH" bash -c \'' \
        f'eval "$({system("lmod")} bash load pytorch/24.11)"; echo "$HPCSTACK_RELEASE $PATH $HPCSTACK_IMAGE_SHA256"\' 2>&1; done'  # fmt: skip
    with subprocess.Popen(
        ["bash", "-c", script], env=clean(place), stdout=subprocess.PIPE, text=True
    ) as loader:
        for number in range(PUBLISHES):
            stack = place.stack()
            image = place.artifact(stack, f"image {number}".encode())
            place.publisher.publish(stack, image, "production", None, {})
        assert loader.stdout
        lines = loader.stdout.read().splitlines()
    assert len(lines) == LOADS, [line for line in lines if not line.startswith("pytorch/")][:5]
    known = {f"pytorch/{one.release}": one.sha256 for one in place.tree.ledger("pytorch").entries}
    found = set()
    for line in lines:
        match = re.fullmatch(r"(pytorch/24\.11-r\d+) (\S+) ([0-9a-f]{64})", line)
        assert match, line
        assert match[2] == f"{place.store.top}/releases/{match[1]}/bin:/usr/bin:/bin"
        assert known[match[1]] == match[3]
        found.add(match[1])
    print(f"{LOADS} loads during {PUBLISHES} publishes: {len(found)} releases seen")
    assert len(found) > 1


def test_publishers_at_once_make_one_release_each(tmp_path: Path) -> None:
    place = Place(tmp_path)
    running = [
        subprocess.Popen(verb(place, "publish", f"c{n}"), env=environment()) for n in range(4)
    ]
    assert [one.wait(timeout=120) for one in running] == [0] * 4
    assert sorted(one.release for one in place.tree.ledger("pytorch").entries) == [
        f"24.11-r{n}" for n in range(1, 5)
    ]
    whole(place)


def test_a_publisher_that_may_not_write_changes_nothing(tmp_path: Path) -> None:
    from hpcstack.core.errors import StoreError
    from hpcstack.releases.permissions import Permissions

    place = ready(tmp_path)
    before = tree_of(place.site.module_root)

    class Full(Permissions):
        def write(self, path: Path, text: str) -> None:
            raise OSError(28, "No space left on device", str(path))

    tree = place.publisher.tree
    broken = type(tree)(tree.root, Full())
    from hpcstack.releases.changes import choose_default
    from hpcstack.releases.tree import TreeChange

    with pytest.raises(StoreError, match="No space left"), broken.hold("pytorch"):
        ledger = broken.ledger("pytorch")
        event = ledger.events[-1]
        broken.commit(TreeChange(choose_default(ledger, "24.11", event), {}, "default"))
    with place.tree.hold("pytorch"):
        pass
    assert tree_of(place.site.module_root) == before


def test_a_journal_says_what_was_to_be_done(tmp_path: Path) -> None:
    """What is written down is finished, also where a step of it was done before."""
    place = ready(tmp_path)
    journal = place.site.module_root / "state/pytorch/journal.json"
    generation = str((place.site.module_root / "state/pytorch/current").readlink())
    homes = {".lua": "Core", "": "Tcl"}
    document = {
        "format": "hpcstack/modules/v1",
        "homes": homes,
        "files": {},
        "moves": [],
        "generations": [generation],
    }
    journal.write_text(json.dumps(document))
    assert place.tree.pending() == ["pytorch"]
    with place.tree.hold("pytorch"):
        pass
    assert not place.tree.pending()


def test_two_trees_on_one_store_never_share_a_release(tmp_path: Path) -> None:
    """Each has its own site; the store is one.

    Numbers are not given twice, and no part of the other is swept.
    """
    one, two = (
        Place(tmp_path / "one", store=tmp_path / "s"),
        Place(tmp_path / "two", store=tmp_path / "s"),
    )
    began = one.publisher.tree
    part = name_prepared(tmp_path / "s/releases/pytorch/24.11-r1", one.site.module_root)
    part.mkdir(parents=True)
    assert two.publish(content=b"B").release == "pytorch/24.11-r2"
    assert part.exists()
    assert one.publish(content=b"A").release == "pytorch/24.11-r3" or not part.exists()
    for place, content in ((one, b"A"), (two, b"B")):
        entry = place.tree.ledger("pytorch").entries[0]
        text = (place.tree.core / "pytorch" / f"{entry.release}.lua").read_text()
        run = (tmp_path / "s/releases/pytorch" / entry.release / "libexec/run").read_text()
        artifact = place.store.artifact(entry.key)
        assert artifact
        assert artifact.image.read_bytes() == content
        assert str(artifact.image) in text
        assert str(artifact.image) in run
    assert began.root != two.tree.root


@pytest.mark.parametrize(
    "text", ["{}", "[]", "null", '"x"', '{"format": "hpcstack/modules/v9"}', "{torn"]
)
def test_a_journal_that_is_not_ours_is_told(tmp_path: Path, text: str) -> None:
    from hpcstack.core.errors import StoreError

    place = ready(tmp_path)
    (place.site.module_root / "state/pytorch/journal.json").write_text(text)
    with pytest.raises(StoreError, match="damaged"):
        place.publish(content=b"three")


def test_a_release_whose_folder_is_gone_is_made_again(tmp_path: Path) -> None:
    import shutil

    place = Place(tmp_path)
    first = place.publish()
    shutil.rmtree(tmp_path / "store/releases/pytorch/24.11-r1")
    again = place.publish()
    assert (first.release, again.release, again.new) == (
        "pytorch/24.11-r1",
        "pytorch/24.11-r2",
        True,
    )


def test_an_image_published_before_the_last_one_is_published_anew(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for content, release in (
        (b"A", "24.11-r1"),
        (b"B", "24.11-r2"),
        (b"B", "24.11-r2"),
        (b"A", "24.11-r3"),
    ):
        assert place.publish(content=content).release == f"pytorch/{release}"
        assert place.tree.ledger("pytorch").aliases["24.11"] == release
