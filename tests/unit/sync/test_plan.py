"""What is to be done, from what is declared and what is so: each case of it, and that carrying a
plan out ends, does nothing twice, and never takes from users what a person has not declared.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.publish.damage import Damage
from hpcstack.releases import changes
from hpcstack.releases.ledger import Dates, Entry, Event, Ledger
from hpcstack.sync.declaration import Declared
from hpcstack.sync.plan import (
    NamePlan,
    SyncStep,
    choose_versions,
    is_dated_by_sync,
    plan_name,
    plan_version,
)
from hpcstack.sync.state import ImageState, NameState, ProofState, StackState

NOW = datetime(2027, 3, 1, 6, tzinfo=timezone.utc)
PROVEN = ProofState("dgx", tested="2027-03-01T05:00:00+00:00")
UNTESTED = ProofState("dgx", ("there is no report of this image",))


def stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def image(content: str) -> ImageState:
    return ImageState(content * 4, content)


def stack(version: str, content: str = "", **more: Any) -> StackState:
    """The stack of VERSION with the image CONTENT, proven unless it is said otherwise."""
    values = {"image": image(content) if content else None, "proofs": (PROVEN,), **more}
    return StackState(version, f"demo-{version}", **values)


def publish(
    ledger: Ledger,
    version: str,
    content: str,
    channel: str = "production",
    moment: datetime = NOW,
    by: str = "sync",
) -> Ledger:
    release = ledger.next(version, [])
    entry = Entry(release, version, channel, content * 4, content, stamp(moment), by)
    verb = "publish" if channel == "testing" else "promote"
    event = Event(stamp(moment), by, verb, release)
    return changes.publish_entry(ledger, entry, Dates(origin="recipe"), event)


def change(ledger: Ledger, step: SyncStep, moment: datetime = NOW, verb: str = "") -> Ledger:
    """LEDGER after STEP, as act.py changes it."""
    event = Event(stamp(moment), "me", verb or f"sync {step.verb}", "")
    if step.verb == "default":
        return changes.choose_default(ledger, step.version, event)
    assert step.dates is not None
    today = moment.date().isoformat()
    return changes.retire_version(ledger, step.version, step.dates, today, event)


def plan(
    declared: Declared, ledger: Ledger, *stacks: StackState, moment: datetime = NOW, **more: Any
) -> NamePlan:
    return plan_name("demo", declared, NameState(ledger, stacks, **more), moment)


def say(found: NamePlan) -> list[str]:
    """The steps of a plan in words."""
    return [f"{one.verb} {one.subject}" for one in found.steps]


EMPTY = Ledger("demo")


@pytest.mark.parametrize(
    ("declared", "chosen"),
    [
        (Declared(), ["24.11", "25.09", "25.10", "25.10-ds"]),
        (Declared(newest=1), ["25.10", "25.10-ds"]),
        (Declared(newest=2), ["25.09", "25.10", "25.10-ds"]),
        (Declared(newest=2, versions=("??.??",)), ["25.09", "25.10"]),
        (Declared(newest=2, without=("25.09",)), ["24.11", "25.10", "25.10-ds"]),
        (Declared(versions=("24.11", "25.*-ds")), ["24.11", "25.10-ds"]),
        (Declared(versions=("9*",)), []),
    ],
)
def test_versions_are_chosen(declared: Declared, chosen: list[str]) -> None:
    known = ["25.10", "24.11", "25.10-ds", "25.09"]
    assert list(choose_versions(declared, known)) == chosen


def test_a_new_version_goes_all_the_way() -> None:
    found = plan(Declared(), EMPTY, stack("25.10", stale=("there is no lock",)))
    assert say(found) == [
        "lock demo-25.10",
        "build demo-25.10",
        "test demo-25.10",
        "publish demo-25.10",
        "promote demo/25.10",
    ]
    assert found.status == "todo"
    assert say(plan(Declared(channel="testing"), EMPTY, stack("25.10")))[-1] == "publish demo-25.10"
    pulled = Declared.model_validate({"from": "registry.example/demo"})
    assert say(plan(pulled, EMPTY, stack("25.10")))[0] == "pull demo-25.10"


def test_a_release_waits_in_testing() -> None:
    declared = Declared.model_validate({"gate": {"days": 7}})
    ledger = publish(EMPTY, "25.10", "A", "testing", NOW - timedelta(days=6))
    found = plan(declared, ledger, stack("25.10", "A"))
    assert (found.status, say(found)) == ("waits", [])
    assert found.versions[0].note == "in testing until 2027-03-02"
    found = plan(declared, ledger, stack("25.10", "A"), moment=NOW + timedelta(days=1))
    assert say(found) == ["promote demo/25.10-r1"]

    late = publish(EMPTY, "25.10", "A", "testing", NOW - timedelta(days=7, seconds=-1))
    assert plan(declared, late, stack("25.10", "A")).status == "waits", "a week is a week"

    later = Declared.model_validate({"gate": {"not_before": "2027-04-01"}})
    assert (
        plan(later, ledger, stack("25.10", "A")).versions[0].note == "in testing until 2027-04-01"
    )
    second = plan(Declared(), ledger, stack("25.10", "A"), second_person=True)
    assert (second.status, say(second)) == ("waits", [])


def test_what_has_failed_reaches_nobody() -> None:
    failed = ProofState("dgx", ("node.torch is FAIL",), stamp(NOW), failed=True)
    found = plan(Declared(), EMPTY, stack("25.10", "A", proofs=(failed,)))
    assert (found.status, say(found)) == ("failed", [])
    assert found.versions[0].note == "not proven on dgx: node.torch is FAIL"

    # What merely lacks proof may be tried in testing.
    skipped = ProofState("dgx", ("fabric.hcas is SKIP",), stamp(NOW))
    found = plan(Declared(), EMPTY, stack("25.10", "A", proofs=(skipped,)))
    assert (found.status, say(found)) == ("failed", ["publish demo-25.10"])


def test_each_partition_is_asked() -> None:
    failed = ProofState("gh200", ("x is FAIL",), stamp(NOW), failed=True)
    found = plan(Declared(), EMPTY, stack("25.10", "A", proofs=(UNTESTED, failed)))
    assert (found.status, say(found)) == ("failed", ["test demo-25.10"])
    assert found.steps[0].partition == "dgx"


@pytest.mark.parametrize(("days", "tests"), [(6, False), (7, True), (8, True)])
def test_a_test_that_did_not_pass_is_run_again(days: int, tests: bool) -> None:
    old = ProofState("dgx", ("x is FAIL",), stamp(NOW - timedelta(days=days)), failed=True)
    found = plan(Declared(), EMPTY, stack("25.10", "A", proofs=(old,)))
    assert ("test demo-25.10" in say(found)) is tests
    outdated = replace(old, tested=stamp(NOW), outdated=True)
    assert "test demo-25.10" in say(
        plan(Declared(), EMPTY, stack("25.10", "A", proofs=(outdated,)))
    )


def test_where_nobody_knows_what_is_published_nothing_is() -> None:
    """A lost state is a person's to restore, and a torn ledger is repaired first."""
    lost = Damage("demo", "its state is gone", "hpcstack repair demo --generation N", "nothing")
    found = plan(Declared(), EMPTY, stack("25.10", "A"), lost=(lost,))
    assert (found.status, say(found)) == ("failed", [])
    mendable = replace(lost, repair="file")
    torn = plan(Declared(), EMPTY, damage=(mendable,), torn="ledger.json is damaged")
    assert (torn.status, say(torn)) == ("failed", ["repair demo"])


@pytest.mark.parametrize(
    "declared",
    [
        Declared(versions=("25.09", "25.10")),
        Declared(versions=("25.10",), without=("25.1O",)),
        Declared.model_validate({"dates": {"25.1l": {"warn": "2027-01-01"}}}),
    ],
)
def test_what_is_declared_and_not_there_is_named(declared: Declared) -> None:
    found = plan(declared, publish(EMPTY, "25.10", "A"), stack("25.10", "A"), known=("25.10",))
    assert found.status == "failed"


def test_a_typing_error_retires_nothing() -> None:
    ledger = publish(publish(EMPTY, "25.09", "A"), "25.10", "B")
    declared = Declared(versions=("25.09", "25.l0"))
    found = plan(declared, ledger, stack("25.09", "A"), known=("25.09", "25.10"))
    assert (found.status, say(found)) == ("failed", [])


def test_a_rolled_back_image_stays_away_after_it_was_pruned() -> None:
    """Although sync had once retired its version, and brought it back."""
    ledger = publish(publish(EMPTY, "25.09", "A"), "25.10", "B")
    ledger = change(ledger, plan(Declared(), ledger, stack("25.10", "B")).steps[0])
    back = plan(Declared(), ledger, stack("25.09", "A"), stack("25.10", "B")).steps[0]
    ledger = publish(change(ledger, back), "25.09", "C")
    event = Event(stamp(NOW), "ann", "rollback", "", reason="it diverges")
    ledger = changes.roll_back_version(ledger, "25.09", "", event)
    ledger = changes.purge_releases(ledger, ["25.09-r2"], Event(stamp(NOW), "me", "gc", ""))
    found = plan(Declared(), ledger, stack("25.09", "C"), stack("25.10", "B"))
    assert (found.status, say(found)) == ("held", [])
    assert "by ann: it diverges" in found.versions[0].note


def test_a_typing_error_in_without_publishes_nothing() -> None:
    declared = Declared(without=("25.l0",))
    ledger = publish(EMPTY, "25.09", "A")
    stacks = (stack("25.09", "A"), stack("25.10", "B"))
    found = plan(declared, ledger, *stacks, known=("25.09", "25.10"))
    assert (found.status, say(found)) == ("failed", [])
    assert [one.status for one in found.versions] == ["done", "waits"]


def test_what_a_person_retired_gets_no_new_image() -> None:
    """It would be refused as well: days belong to the version."""
    ledger = publish(publish(EMPTY, "25.09", "A"), "25.10", "B")
    now = SyncStep("retire", "demo/25.09", "", "25.09", dates=Dates("2027-03-01", "2027-03-01"))
    ledger = change(ledger, now, verb="retire")
    found = plan(Declared(), ledger, stack("25.09", "C"), stack("25.10", "B"))
    assert (found.status, say(found)) == ("held", [])
    assert "hpcstack retire demo/25.09 --cancel" in found.versions[0].note


def test_the_recipes_last_day_counts_as_it_is_now() -> None:
    days = Dates("2027-02-01", "2027-04-01", origin="recipe")
    ledger = publish(publish(EMPTY, "25.09", "A"), "25.10", "B")
    old, new = stack("25.09", "A", lifecycle=days), stack("25.10", "B")
    found = plan(Declared(), ledger, old, new)
    assert [one.dates for one in found.steps] == [days]
    ledger = change(ledger, found.steps[0])
    assert plan(Declared(), ledger, old, new).status == "done"

    # The recipe's day is put off, or taken away.
    later = replace(old, lifecycle=replace(days, remove="2027-06-01"))
    assert [one.dates for one in plan(Declared(), ledger, later, new).steps] == [later.lifecycle]
    assert say(plan(Declared(), ledger, stack("25.09", "A"), new)) == ["unretire demo/25.09"]

    # A recipe that cannot be read says nothing of its days.
    assert say(plan(Declared(), ledger, stack("25.09", problem="no such file"), new)) == []

    over = datetime(2027, 4, 1, tzinfo=timezone.utc)
    ended = plan(Declared(default="25.09"), ledger, old, new, moment=over)
    assert "retire demo/25.09" in say(ended)
    assert ("failed", "the default is to be 25.09, which is refused by now") in ended.notes


def test_a_recipe_that_has_gone_astray_retires_nothing() -> None:
    ledger = publish(publish(EMPTY, "25.09", "A"), "25.10", "B")
    for declared in (Declared(versions=("25.09", "25.10")), Declared(newest=1)):
        found = plan(declared, ledger, stack("25.09", "A"), known=("25.09",))
        assert (found.status, say(found)) == ("failed", [])
    out = plan(Declared(without=("25.10",)), ledger, stack("25.09", "A"), known=("25.09", "25.10"))
    assert say(out) == ["retire demo/25.10"]


def test_who_keeps_a_version_is_believed() -> None:
    ledger = publish(publish(EMPTY, "25.09", "A"), "25.10", "B")
    ledger = change(ledger, plan(Declared(), ledger, stack("25.10", "B")).steps[0])
    kept = SyncStep("unretire", "demo/25.09", "", "25.09", dates=Dates())
    found = plan(Declared(), change(ledger, kept, verb="retire --cancel"), stack("25.10", "B"))
    assert (found.status, say(found)) == ("held", [])

    cancelled = change(ledger, kept, verb="retire --cancel")
    out = Declared(without=("25.09",))
    assert say(plan(out, cancelled, stack("25.10", "B"))) == ["retire demo/25.09"], "git says so"
    dated = Declared.model_validate({"dates": {"25.09": {"refuse": "2027-04-01"}}})
    assert plan(dated, cancelled, stack("25.09", "A"), stack("25.10", "B")).status == "held"

    event = Event(stamp(NOW), "ann", "default", "")
    pinned = changes.choose_default(
        publish(publish(EMPTY, "25.09", "A"), "25.10", "B"), "25.09", event
    )
    assert plan(Declared(), pinned, stack("25.10", "B")).status == "held"
    assert say(plan(Declared(default="newest"), pinned, stack("25.10", "B"))) == [
        "default demo",
        "retire demo/25.09",
    ]


def test_an_earlier_day_of_a_persons_counts() -> None:
    ledger = publish(publish(EMPTY, "25.09", "A"), "25.10", "B")
    soon = SyncStep("retire", "demo/25.09", "", "25.09", dates=Dates("2027-03-01", "2027-03-05"))
    ledger = change(ledger, soon, verb="retire")
    declared = Declared.model_validate({"dates": {"25.09": {"refuse": "2027-06-01"}}})
    found = plan(declared, ledger, stack("25.09", "A"), stack("25.10", "B"))
    assert (found.status, say(found)) == ("held", [])


def test_what_was_pruned_is_published_anew() -> None:
    ledger = publish(publish(EMPTY, "25.09", "A"), "25.10", "B")
    ledger = change(ledger, plan(Declared(), ledger, stack("25.10", "B")).steps[0])
    later = NOW + timedelta(days=40)
    ledger = change(
        ledger, plan(Declared(), ledger, stack("25.10", "B"), moment=later).steps[0], later
    )
    ledger = changes.purge_releases(ledger, ["25.09-r1"], Event(stamp(later), "me", "gc", ""))
    back = plan(Declared(), ledger, stack("25.09", "A"), stack("25.10", "B"), moment=later)
    assert say(back)[:2] == ["unretire demo/25.09", "publish demo-25.09"]


def test_what_is_in_production_is_not_held_for_a_removed_test() -> None:
    ledger = publish(publish(EMPTY, "25.10", "A"), "25.10", "A", "testing")
    ledger = changes.remove_releases(ledger, ["25.10-r2"], Event(stamp(NOW), "ann", "remove", ""))
    assert plan(Declared(), ledger, stack("25.10", "A")).status == "done"


def test_a_shut_gate_keeps_it_in_testing() -> None:
    ledger = publish(EMPTY, "25.10", "A", "testing")
    found = plan(Declared(), ledger, stack("25.10", "A", shut=("CVE-1 is critical",)))
    assert (found.status, say(found)) == ("failed", [])
    assert "CVE-1 is critical" in found.versions[0].note


def test_what_a_person_took_back_stays_away() -> None:
    ledger = publish(publish(EMPTY, "25.10", "A"), "25.10", "B")
    event = Event(stamp(NOW), "ann", "rollback", "", reason="it diverges")
    ledger = changes.roll_back_version(ledger, "25.10", "", event)
    found = plan(Declared(), ledger, stack("25.10", "B"))
    assert (found.status, say(found)) == ("held", [])
    assert (
        "25.10-r2 has been withdrawn since 2027-03-01 by ann: it diverges" in found.versions[0].note
    )

    # Another image goes on, and so does the recipe that is put back.
    assert say(plan(Declared(), ledger, stack("25.10", "C")))[-1] == "promote demo/25.10"
    assert plan(Declared(), ledger, stack("25.10", "A")).status == "done"


def test_a_recipe_that_is_put_back_is_published_again() -> None:
    ledger = publish(publish(EMPTY, "25.10", "A"), "25.10", "B")
    found = plan(Declared(), ledger, stack("25.10", "A"))
    assert say(found) == ["publish demo-25.10", "promote demo/25.10"]


def test_what_is_over_is_retired_once_the_next_is_there() -> None:
    ledger = publish(EMPTY, "25.09", "A")
    waiting = plan(Declared(), ledger, stack("25.10", "B", proofs=(UNTESTED,)))
    assert not waiting.changes
    assert ("waits", "25.09 stays until 25.10 is in production") in waiting.notes

    ledger = publish(ledger, "25.10", "B")
    found = plan(Declared(), ledger, stack("25.10", "B"))
    assert say(found) == ["retire demo/25.09"]
    assert found.steps[0].dates == Dates("2027-03-01", "2027-03-31", "demo/25.10")

    ledger = change(ledger, found.steps[0])
    assert plan(Declared(), ledger, stack("25.10", "B")).status == "done"
    on_its_day = NOW + timedelta(days=30)
    over = plan(Declared(), ledger, stack("25.10", "B"), moment=on_its_day)
    assert say(over) == ["retire demo/25.09"]
    ledger = change(ledger, over.steps[0], on_its_day)
    assert "25.09" not in ledger.aliases
    assert say(plan(Declared(), ledger, stack("25.10", "B"), moment=on_its_day)) == []


def test_what_is_declared_again_comes_back() -> None:
    ledger = publish(publish(EMPTY, "25.09", "A"), "25.10", "B")
    ledger = change(ledger, plan(Declared(), ledger, stack("25.10", "B")).steps[0])
    back = plan(Declared(), ledger, stack("25.09", "A"), stack("25.10", "B"))
    assert say(back) == ["unretire demo/25.09"]
    assert change(ledger, back.steps[0]).dates["25.09"] == Dates(origin="recipe")

    # Also after its day.
    later = NOW + timedelta(days=40)
    over = plan(Declared(), ledger, stack("25.10", "B"), moment=later)
    ledger = change(ledger, over.steps[0], later)
    back = plan(Declared(), ledger, stack("25.09", "A"), stack("25.10", "B"), moment=later)
    assert say(back) == ["unretire demo/25.09"]
    ledger = change(ledger, back.steps[0], later)
    assert ledger.aliases["25.09"] == "25.09-r1"
    assert (
        plan(Declared(), ledger, stack("25.09", "A"), stack("25.10", "B"), moment=later).status
        == "done"
    )


def test_what_a_person_retired_is_not_brought_back() -> None:
    ledger = publish(publish(EMPTY, "25.09", "A"), "25.10", "B")
    now = SyncStep("retire", "demo/25.09", "", "25.09", dates=Dates("2027-03-01", "2027-03-01"))
    ledger = change(ledger, now, verb="retire")
    assert not is_dated_by_sync(ledger, "25.09")
    found = plan(Declared(), ledger, stack("25.09", "A"), stack("25.10", "B"))
    assert (found.status, say(found)) == ("held", [])

    # Nor by days that are declared, and later.
    dated = Declared.model_validate({"dates": {"25.09": {"refuse": "2027-06-01"}}})
    found = plan(dated, ledger, stack("25.09", "A"), stack("25.10", "B"))
    assert "retire demo/25.09" not in say(found)


def test_declared_days_are_set_and_kept() -> None:
    days = {"25.09": {"warn": "2027-04-01", "refuse": "2027-05-01", "successor": "demo/25.10"}}
    declared = Declared.model_validate({"dates": days})
    ledger = publish(publish(EMPTY, "25.09", "A"), "25.10", "B")
    stacks = (stack("25.09", "A"), stack("25.10", "B"))
    found = plan(declared, ledger, *stacks)
    assert [one.dates for one in found.steps] == [Dates("2027-04-01", "2027-05-01", "demo/25.10")]
    ledger = change(ledger, found.steps[0])
    assert plan(declared, ledger, *stacks).status == "done"

    over = datetime(2027, 5, 1, tzinfo=timezone.utc)
    found = plan(declared, ledger, *stacks, moment=over)
    assert [one.note for one in found.versions] == [
        "refused since 2027-05-01, as declared",
        "in production as 25.10-r1",
    ]
    assert say(found) == ["retire demo/25.09"]
    ledger = change(ledger, found.steps[0], over)
    assert plan(declared, ledger, *stacks, moment=over).status == "done"


def test_nothing_is_retired_while_a_recipe_cannot_be_read() -> None:
    ledger = publish(publish(EMPTY, "25.09", "A"), "25.10", "B")
    found = plan(Declared(), ledger, stack("25.10", "B"), unreadable=("demo-25.09.yaml:3:1: no",))
    assert (found.status, say(found)) == ("failed", [])


def test_nothing_is_retired_where_nothing_is_declared() -> None:
    ledger = publish(EMPTY, "25.09", "A")
    found = plan(Declared(), ledger)
    assert (found.status, say(found)) == ("failed", [])


def test_the_default() -> None:
    ledger = publish(publish(EMPTY, "25.09", "A"), "25.10", "B")
    stacks = (stack("25.09", "A"), stack("25.10", "B"))
    assert plan(Declared(), ledger, *stacks).status == "done"
    found = plan(Declared(default="25.09"), ledger, *stacks)
    assert say(found) == ["default demo/25.09"]
    ledger = change(ledger, found.steps[0])
    assert ledger.default == "25.09-r1"
    assert plan(Declared(default="25.09"), ledger, *stacks).status == "done"
    assert plan(Declared(), ledger, *stacks).status == "done", "what nobody declares is left alone"
    found = plan(Declared(default="newest"), ledger, *stacks)
    assert change(ledger, found.steps[0]).default == "25.10-r1"
    assert plan(Declared(default="26.01"), ledger, *stacks).status == "failed"
    tested = publish(ledger, "25.11", "C", "testing")
    waiting = (*stacks, stack("25.11", "C", proofs=(UNTESTED,)))
    found = plan(Declared(default="25.11"), tested, *waiting)
    assert not found.changes
    assert ("waits", "the default will be 25.11 once it is in production") in found.notes


def test_a_name_on_hold_is_only_repaired() -> None:
    damage = Damage("demo", "its link is gone", "hpcstack repair demo", "state")
    ledger = publish(EMPTY, "25.09", "A")
    held = plan(Declared(hold="maintenance"), ledger, stack("25.10"), damage=(damage,))
    assert say(held) == ["repair demo"]
    gone = replace(damage, repair="image", subject="demo/25.09-r1")
    both = plan(Declared(), ledger, stack("25.09", "A"), damage=(damage,), images=(gone, gone))
    assert say(both) == ["repair demo", "rebuild demo"]
    assert "and 1 more" in both.steps[1].why
    lost = replace(damage, repair="nothing")
    assert plan(Declared(), ledger, stack("25.09", "A"), lost=(lost,)).status == "failed"


# -- any year

CONTENTS = st.sampled_from("ABC")
ACTIONS = st.sampled_from(
    ["sync", "month", "relock", "rollback", "retire", "cancel", "default", "days", "break", "mend"]
)


@given(st.lists(st.tuples(ACTIONS, st.integers(0, 5)), max_size=25), st.integers(0, 3))
def test_any_year_ends_as_declared(actions: list[tuple[str, int]], newest: int) -> None:
    """Whatever people do: syncs end, a second one does nothing, and what a person has withdrawn is
    not what a version means.
    """
    declared = Declared(newest=newest, default="newest")
    year = Imagined(declared)
    for action, number in actions:
        year.act(action, number)
    year.sync()
    before = year.ledger
    assert year.sync() == 0, "done again, it does nothing"
    assert year.ledger is before

    for version, release in year.ledger.aliases.items():
        entry = year.ledger.entry(release)
        assert entry.state == "live"
        assert (version, entry.sha256) not in year.withdrawn
    if year.proven_once:
        assert any(
            one.channel == "production"
            for one in map(year.ledger.entry, year.ledger.aliases.values())
        )


class Imagined:
    """A site of one name, whose images are letters: what sync does is done to the ledger."""

    def __init__(self, declared: Declared) -> None:
        self.declared, self.ledger, self.moment = declared, EMPTY, NOW
        self.images: dict[str, str] = {"25.01": "A"}
        self.failing: set[str] = set()
        self.withdrawn: set[tuple[str, str]] = set()
        self.proven_once = False

    def look(self) -> NameState:
        chosen = choose_versions(self.declared, self.images)
        stacks = []
        for version in chosen:
            proof = PROVEN
            if version in self.failing:
                proof = ProofState("dgx", ("x is FAIL",), stamp(self.moment), failed=True)
            stacks.append(stack(version, self.images[version], proofs=(proof,)))
        return NameState(self.ledger, tuple(stacks), known=tuple(self.images))

    def plan(self) -> NamePlan:
        return plan_name("demo", self.declared, self.look(), self.moment)

    def sync(self) -> int:
        """All that a sync does; how many steps it took."""
        taken = 0
        while steps := self.plan().steps:
            taken += 1
            assert taken < 200, "it does not end"
            self.take(steps[0])
        return taken

    def take(self, step: SyncStep) -> None:
        if step.verb in ("publish", "promote"):
            channel = "testing" if step.verb == "publish" else "production"
            content = self.images[step.version]
            self.ledger = publish(self.ledger, step.version, content, channel, self.moment)
            self.proven_once |= channel == "production"
        else:
            self.ledger = change(self.ledger, step, self.moment)

    def act(self, action: str, number: int) -> None:
        """One thing that happens; what makes no sense does not."""
        self.moment += timedelta(hours=1)
        versions = list(self.images)
        version = versions[number % len(versions)]
        if action == "sync":
            self.sync()
        elif action == "month":
            self.images[f"25.{len(versions) + 1:02}"] = "ABC"[number % 3]
        elif action == "relock":
            self.images[version] = chr(ord("A") + number + len(self.ledger.entries))
        elif action == "days":
            self.moment += timedelta(days=number * 10)
        elif action == "break":
            self.failing.add(version)
        elif action == "mend":
            self.failing.discard(version)
        else:
            self.act_by_hand(action, version)

    def act_by_hand(self, action: str, version: str) -> None:
        """What a person does to what is published; what makes no sense is not done."""
        today = self.moment.date().isoformat()
        event = Event(stamp(self.moment), "ann", action, "")
        meant = self.ledger.aliased(version)
        if action == "rollback" and meant and len(self.ledger.of(version)) > 2:
            try:
                rolled_back = changes.roll_back_version(self.ledger, version, "", event)
            except Exception:  # nothing to go back to
                return
            target = rolled_back.entry(rolled_back.aliases[version])
            if (meant.channel, target.channel) == ("production", "testing"):
                return  # the verb refuses that without --force
            self.ledger = rolled_back
            if self.ledger.aliases.get(version) != meant.release:
                after = self.ledger.entry(self.ledger.aliases[version])
                if after.sha256 != meant.sha256:
                    self.withdrawn.add((version, meant.sha256))
        elif action in ("retire", "cancel") and meant and len(self.ledger.aliases) > 1:
            dates = Dates(today, today) if action == "retire" else Dates()
            self.ledger = changes.retire_version(self.ledger, version, dates, today, event)
        elif action == "default" and meant:
            self.ledger = changes.choose_default(self.ledger, version, event)


def test_a_version_is_planned_by_itself() -> None:
    state = NameState(EMPTY, ())
    wrong = plan_version("demo", stack("25.10", problem="no such base"), Declared(), state, NOW)
    assert (wrong.status, wrong.note) == ("failed", "no such base")
