"""Any sequence of the verbs on what is published keeps what production means, and any of them can
be taken back.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcstack.build.build import _published_with_other_bytes
from hpcstack.core.errors import InputError, StoreError
from hpcstack.publish.gc import list_items, remove_item
from hpcstack.publish.status import list_notes_of_dates, list_rows
from hpcstack.releases import changes
from hpcstack.releases.ledger import Dates, Entry, Event, Ledger
from hpcstack.releases.ledger_format import as_json, parse_ledger
from support.modules import Place, bash, report

SEQUENCES = int(os.environ.get("HPCSTACK_SEQUENCES", "1000"))  # ci/soak runs 10,000
DAY = "2026-06-01"
VERSIONS = ("24.11", "25.10", "25.10-cu13")


def event(verb: str, number: int, release: str = "") -> Event:
    return Event(
        f"{DAY}T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}+00:00",
        "me",
        verb,
        release,
    )


def seen(ledger: Ledger) -> tuple[object, ...]:
    """All that users see of LEDGER, and what decides over it later."""
    dates = {version: one for version, one in ledger.dates.items() if one != Dates()}
    live = {one.release for one in ledger.entries if one.state == "live"}
    there = {one.release for one in ledger.entries if one.state not in ("removed", "gone")}
    return (ledger.aliases, ledger.default, ledger.pinned, dates, live, there)


def step(ledger: Ledger, dice: random.Random, number: int) -> Ledger:
    """LEDGER after one verb with any arguments, sensible or not. InputError where it refuses."""
    version = dice.choice(VERSIONS)
    releases = [one.release for one in ledger.entries] or ["24.11-r1"]
    some = dice.sample(releases, dice.randint(1, min(3, len(releases))))
    verb = dice.choice(
        ("publish", "promote", "rollback", "default", "retire", "cancel", "remove", "undo", "gc")
    )
    said = event(verb, number)
    if verb in ("publish", "promote"):
        release, image = ledger.next(version, []), dice.choice(("A", "B", "C"))
        channel = "testing" if verb == "publish" else "production"
        entry = Entry(release, version, channel, f"key{image}".lower(), image, said.at, "me")
        return changes.publish_entry(ledger, entry, Dates(), replace(said, release=release))
    if verb == "rollback":
        return changes.roll_back_version(ledger, version, dice.choice(["", *releases]), said)
    if verb == "default":
        return changes.choose_default(ledger, dice.choice([version, ""]), said)
    if verb == "retire":
        return changes.retire_version(
            ledger, version, Dates(DAY, dice.choice((DAY, "2027-01-01"))), DAY, said
        )
    if verb == "cancel":
        return changes.retire_version(ledger, version, Dates(), DAY, said)
    if verb == "remove":
        return changes.remove_releases(ledger, some, said)
    return (
        changes.undo_changes(ledger, said)
        if verb == "undo"
        else changes.purge_releases(ledger, some, said)
    )


def test_sequences_of_verbs() -> None:
    """Without force production is never empty or untested; history names a version; undo gives what
    was before.
    """
    done = dict.fromkeys(("acted", "refused", "harmful", "in use"), 0)
    for seed in range(SEQUENCES):
        dice, ledger = random.Random(seed), Ledger("pytorch")
        for number in range(dice.randint(1, 16)):
            try:
                after = step(ledger, dice, number)
            except InputError:
                done["refused"] += 1
                continue
            jobs = [
                (f"job {n}", f"module load pytorch/{dice.choice(VERSIONS)}-r{n}\n")
                for n in range(1, 4)
            ]
            if any(changes.used_by(ledger, one, jobs) for one in changes.list_going(ledger, after)):
                done["in use"] += 1
                continue
            if harm := changes.find_harm(ledger, after, DAY):
                done["harmful"] += 1
                if dice.random() < 0.8:
                    continue  # refused without force
            check(ledger, after, forced=bool(harm))
            done["acted"] += 1
            ledger = after
    assert min(done.values()) > SEQUENCES / 10, done


def check(before: Ledger, after: Ledger, *, forced: bool) -> None:
    last = after.events[-1]
    assert last.by and last.at and last.subject and last.verb, last
    assert parse_ledger(as_json(after), "x") == after
    states = {one.release: one for one in after.entries}
    assert all(states[release].state == "live" for release in after.aliases.values()), (
        "an alias means a live release"
    )
    assert not after.default or after.default in after.aliases.values()
    if not forced:
        for version, release in before.aliases.items():
            old = before.dates.get(version, Dates()).refuses(DAY)
            if before.entry(release).channel == "production" and not old:
                now = after.aliased(version)
                assert now and now.channel == "production", "production is never empty or untested"
        if before.default and before.entry(before.default).channel == "production":
            assert after.default
            assert after.entry(after.default).channel == "production"
    if last.verb == "gc":
        assert seen(after)[:4] == seen(before)[:4], "gc takes files, and nothing that is meant"
        return
    assert changes.describe_changes(before, after) or seen(before) == seen(after)
    back = changes.undo_changes(after, event("undo", 86399))
    new = {one.release for one in after.entries} - {one.release for one in before.entries}
    expected, got = seen(before), seen(back)
    assert got[:5] == expected[:5] and set(got[5]) - new == expected[5], last  # type: ignore[call-overload]
    assert seen(changes.undo_changes(back, event("undo", 86399))) == seen(after), (
        "taken back twice, it is there again"
    )


def test_a_second_rollback_does_not_take_production_away(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for image in (b"A", b"B"):
        place.publish(content=image)
        place.publish(content=image, channel="production")
    act = place.publisher.change(
        "pytorch", "rollback", lambda now, event: changes.roll_back_version(now, "24.11", "", event)
    )
    assert act.aliases["24.11"] == "24.11-r2"
    before = place.modulerc()
    with pytest.raises(InputError, match="would mean 24.11-r1, which is in testing") as refused:
        place.publisher.change(
            "pytorch",
            "rollback",
            lambda now, event: changes.roll_back_version(now, "24.11", "", event),
        )
    assert "--force --reason" in refused.value.hint
    assert place.modulerc() == before
    after = place.publisher.change("pytorch", "undo", changes.undo_changes)
    assert after.aliases["24.11"] == "24.11-r4"
    assert after.default == "24.11-r4"


def test_what_is_removed_comes_back_until_gc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("gc", "publisher"):  # others of this machine name pytorch
        monkeypatch.setattr(f"hpcstack.publish.{module}.find_users", lambda *_, **__: [])
    place = Place(tmp_path, modules={"keep_days": 0})
    for image in (b"A", b"B", b"C"):
        place.publish(content=image, channel="production")
    tree = place.tree
    lua, tcl = (
        tree.core.with_name(one) / "pytorch" / f"24.11-r1{end}"
        for one, end in (("Core", ".lua"), ("Tcl", ""))
    )
    texts = [one.read_text() for one in (lua, tcl)]

    def take(*releases: str) -> None:
        place.publisher.change(
            "pytorch", "remove", lambda now, event: changes.remove_releases(now, releases, event)
        )

    take("24.11-r1")
    assert not lua.exists()
    assert not tcl.exists()
    assert "24.11-r1" not in bash(place, "lmod", "module -t avail").stderr
    place.publisher.change("pytorch", "undo", changes.undo_changes)
    assert [one.read_text() for one in (lua, tcl)] == texts
    assert (
        bash(place, "lmod", "module load pytorch/24.11-r1 && echo $HPCSTACK_RELEASE").stdout
        == "pytorch/24.11-r1\n"
    )
    take("24.11-r1")
    with pytest.raises(InputError, match="in production and would be gone"):
        take("24.11-r2", "24.11-r3")
    assert not list_rows(tree, place.store)[0]["wrong"]
    going = [
        one
        for one in list_items(place.site, place.publisher.runner, 0, slurm=False)
        if not one.keep
    ]
    assert [one.what for one in going if one.kind == "release"] == ["pytorch/24.11-r1"]
    place.publisher.change(
        "pytorch", "gc", lambda now, event: changes.purge_releases(now, ["24.11-r1"], event)
    )
    for one in going:
        remove_item(one, place.site)
    folder = place.store.top / "releases/pytorch"
    assert sorted(one.name for one in folder.glob("2*")) == ["24.11-r2", "24.11-r3"]
    assert [
        one["wrong"] for one in list_rows(tree, place.store, "pytorch") if one["state"] == "live"
    ] == [[], []]
    with pytest.raises(InputError, match="gc has taken its files"):
        place.publisher.change("pytorch", "undo", changes.undo_changes)
    assert place.publish(content=b"D").release == "pytorch/24.11-r4", (
        "a number is never given twice"
    )


def test_what_somebody_has_loaded_is_not_removed(tmp_path: Path) -> None:
    import subprocess

    place = Place(tmp_path)
    place.publish(content=b"A", channel="production")
    place.publish(content=b"B", channel="production")
    with subprocess.Popen(
        ["sleep", "60"], env={"PATH": "/usr/bin:/bin", "LOADEDMODULES": "gcc/12:pytorch/24.11-r1"}
    ) as user:
        try:
            # Others of this machine may use it, too: five are named, and the rest counted.
            with pytest.raises(
                InputError, match=rf"in use by .*(process {user.pid}\b|and \d+ more)"
            ):
                place.publisher.change(
                    "pytorch",
                    "remove",
                    lambda now, event: changes.remove_releases(now, ["24.11-r1"], event),
                )
        finally:
            user.kill()


@pytest.mark.parametrize(
    ("said", "names"),
    [
        (("module load " "pytorch/24.11"), True), (("module load " "pytorch/24.11-r2"), True), ("pytorch-24.11", True),
        ("srun --container-image=hpcstack/pytorch:24.11", True), (("module load " "pytorch/24.11-r1"), False),
        (("module load " "mypytorch/24.11"), False), ("pytorch/24.110", False), ("pytorch/24.11-r22", False),
        ("comment hpcstack:keyb", True), ("module load pytorch/default", True),
    ],
)  # fmt: skip
def test_who_names_a_release(said: str, names: bool) -> None:
    ledger = Ledger("pytorch")
    for number, image in ((1, "A"), (2, "B")):
        entry = Entry(
            f"24.11-r{number}", "24.11", "production", f"key{image}".lower(), image, DAY, "me"
        )
        ledger = changes.publish_entry(
            ledger, entry, Dates(), event("publish", number, entry.release)
        )
    assert bool(changes.used_by(ledger, ledger.entry("24.11-r2"), [("job 1", said)])) is names


def test_the_alias_of_a_retired_version_says_why(tmp_path: Path) -> None:
    place = Place(tmp_path)
    stack = place.stack()
    done = place.publish(
        stack=stack, channel="production", report=report(place.artifact(stack), {})
    )
    dates = Dates("2026-01-01", DAY, "pytorch/25.10", "CVE-2026-1")
    after = place.publisher.change(
        "pytorch",
        "retire",
        lambda now, event: changes.retire_version(now, "24.11", dates, "2026-11-22", event),
        force=True,
    )
    assert after.aliases == {}
    assert done.new
    for which in ("lmod", "emodules"):
        said = bash(place, which, "module load pytorch/24.11")
        assert "was retired on 2026-06-01 (CVE-2026-1); use pytorch/25.10" in " ".join(
            said.stderr.split()
        )


def test_what_changes_nothing_leaves_no_row_for_undo_to_take(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish(content=b"A", channel="production")
    place.publish("pytorch-25.10", content=b"B", channel="production")
    for _ in range(2):
        place.publisher.change(
            "pytorch", "default", lambda now, event: changes.choose_default(now, "24.11", event)
        )
    verbs = [event.verb for event in place.tree.ledger("pytorch").events]
    assert verbs == ["promote", "promote", "default"]
    after = place.publisher.change("pytorch", "undo", changes.undo_changes)
    assert after.default == "25.10-r1"


def test_a_default_that_will_be_refused_is_said_before(tmp_path: Path) -> None:
    """Retiring it from a later day on, and choosing one whose day is to come."""
    place = Place(tmp_path)
    place.publish(content=b"A", channel="production")
    only = Dates("2099-01-01", "2099-02-01")
    retire = lambda now, event: changes.retire_version(now, "24.11", only, "2026-11-22", event)  # noqa: E731
    place.publisher.change(
        "pytorch", "retire", retire
    )  # there is no other: nothing to choose instead
    place.publisher.change("pytorch", "undo", changes.undo_changes)
    place.publish("pytorch-25.10", content=b"B", channel="production")
    place.publisher.change("pytorch", "retire", retire)  # the default is 25.10
    choose = lambda now, event: changes.choose_default(now, "24.11", event)  # noqa: E731
    with pytest.raises(
        InputError, match="refused from 2099-02-01 on: first hpcstack default pytorch/25.10"
    ):
        place.publisher.change("pytorch", "default", choose)
    place.publisher.change("pytorch", "default", choose, force=True, reason="meant")
    assert all(row["wrong"] == [] for row in list_rows(place.tree, place.store)), (
        "it is not wrong before its day"
    )
    (note,) = list_notes_of_dates(place.tree)
    assert note.startswith("pytorch/24.11-r1 is the default, and refused from 2099-02-01 on")


def test_an_image_that_is_not_the_published_one_is_wrong_and_is_not_run(tmp_path: Path) -> None:
    place = Place(tmp_path)
    done = place.publish(content=b"proven", channel="production")
    artifact = place.store.newest("pytorch-24.11")
    assert artifact
    assert not list_rows(place.tree, place.store)[0]["wrong"]
    record = json.loads((Path(artifact.folder) / "artifact.json").read_text())
    other = hashlib.sha256(b"others").hexdigest()
    artifact.image.chmod(0o644)
    artifact.image.write_bytes(b"others")
    (Path(artifact.folder) / "artifact.json").write_text(json.dumps({**record, "sha256": other}))
    assert "is not the one that was published" in list_rows(place.tree, place.store)[0]["wrong"][0]
    with pytest.raises(StoreError, match="is not the one that was published"):
        place.names().find_image("pytorch-24.11")
    order = SimpleNamespace(key=artifact.key, site=place.site)
    others = _published_with_other_bytes(order, place.store, other)  # type: ignore[arg-type]
    assert others == [done.release]
    same = _published_with_other_bytes(order, place.store, record["sha256"])  # type: ignore[arg-type]
    assert same == []


def test_several_changes_are_taken_back_at_once(tmp_path: Path) -> None:
    """admin 14: `undo` three times toggled the last event."""
    place = Place(tmp_path)
    for content in (b"one", b"two", b"three"):
        place.publish(content=content)
    place.publish("pytorch-25.10", content=b"four")
    states = {one.release: one.state for one in place.tree.ledger("pytorch").entries}
    assert set(states.values()) == {"live"}
    back = place.publisher.change(
        "pytorch", "undo", lambda now, event: changes.undo_changes(now, event, 2), force=True
    )
    assert back.aliases == {"24.11": "24.11-r1"}
    assert back.default == "24.11-r1"
    assert back.events[-1].reason == "takes back all since event 2: publish, publish, publish"
    again = place.publisher.change("pytorch", "undo", changes.undo_changes, force=True)
    assert again.aliases == {"24.11": "24.11-r3", "25.10": "25.10-r1"}, "an undo can be taken back"
    with pytest.raises(InputError, match="has no event 9"):
        changes.list_changes_since(again, 9)
    first = again.events[0]
    assert changes.find_number_after(again, "2000-01-01") == 1
    with pytest.raises(InputError, match="was changed after"):
        changes.find_number_after(again, "2999-01-01")
    assert first.verb == "publish"
