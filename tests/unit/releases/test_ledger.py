"""What verbs make of a ledger: aliases, the default, what is hidden, the history."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.errors import InputError, StoreError
from hpcstack.releases import changes, ledger_format
from hpcstack.releases import ledger as ledgers
from hpcstack.releases.ledger import Dates, Entry, Event, Ledger
from hpcstack.releases.modulerc import render_gateway, render_modulerc

TODAY = "2026-06-01"
EVENT = Event(f"{TODAY}T00:00:00+00:00", "me", "verb", "")


def entry(release: str, channel: str = "testing", image: str = "") -> Entry:
    return Entry(
        release, release.rpartition("-r")[0], channel, "key", image or release, TODAY, "me"
    )


def made(*releases: str) -> Ledger:
    """A ledger of `24.11-r1` (testing) and `24.11-r2!` (production), in this order."""
    ledger = Ledger("pytorch")
    for release in releases:
        one = entry(release.rstrip("!"), "production" if release.endswith("!") else "testing")
        ledger = changes.publish_entry(ledger, one, Dates(), replace(EVENT, release=one.release))
    return ledger


@pytest.mark.parametrize(
    ("releases", "aliases", "default"),
    [
        (["1-r1"], {"1": "1-r1"}, "1-r1"),
        (["1-r1", "1-r2"], {"1": "1-r2"}, "1-r2"),
        (["1-r1", "1-r2!"], {"1": "1-r2"}, "1-r2"),
        (["1-r1!", "1-r2"], {"1": "1-r1"}, "1-r1"),
        (["1-r1!", "2-r1"], {"1": "1-r1", "2": "2-r1"}, "1-r1"),
        (["1-r1!", "2-r1!"], {"1": "1-r1", "2": "2-r1"}, "2-r1"),
        (["9.2-r1!", "9.10-r1!"], {"9.2": "9.2-r1", "9.10": "9.10-r1"}, "9.10-r1"),
        (
            ["25.04-py3-r1", "25.10-r1"],
            {"25.04-py3": "25.04-py3-r1", "25.10": "25.10-r1"},
            "25.10-r1",
        ),
    ],
)
def test_a_testing_release_takes_the_alias_while_production_has_none(
    releases: list[str], aliases: dict[str, str], default: str
) -> None:
    ledger = made(*releases)
    assert (ledger.aliases, ledger.default) == (aliases, default)


def test_only_what_is_meant_and_what_is_newer_is_shown() -> None:
    assert made("1-r1", "1-r2!", "1-r3").hidden() == ["1-r1"]
    assert made("1-r1", "1-r2!", "1-r3", "1-r4!").hidden() == ["1-r1", "1-r2", "1-r3"]


def back(ledger: Ledger, version: str = "1", to: str = "") -> Ledger:
    return changes.roll_back_version(ledger, version, to, EVENT)


def test_rollback_goes_to_the_production_release_before_and_then_to_testing() -> None:
    ledger = made("1-r1", "1-r2!", "1-r3!", "1-r4!")
    first = back(ledger)
    assert first.aliases["1"] == "1-r3"
    assert first.entry("1-r4").state == "withdrawn"
    assert back(first).aliases["1"] == "1-r2"
    assert back(back(first)).aliases["1"] == "1-r1"
    with pytest.raises(InputError, match="only one that is live"):
        back(back(back(first)))
    assert back(first, to="1-r4").aliases["1"] == "1-r4"
    assert back(first, to="1-r4").entry("1-r4").state == "live"


def promoted(*images: str) -> Ledger:
    """A ledger in which each image was published to testing and then promoted: two releases an
    image.
    """
    ledger, number = Ledger("pytorch"), 0
    for image in images:
        for channel in ledgers.CHANNELS:
            number += 1
            one = entry(f"1-r{number}", channel, image)
            ledger = changes.publish_entry(
                ledger, one, Dates(), replace(EVENT, release=one.release)
            )
    return ledger


def test_rollback_never_goes_to_the_image_that_it_leaves() -> None:
    first = back(promoted("A", "B"))
    assert first.aliases["1"] == "1-r2" and first.entry("1-r3").state == "withdrawn", (
        "the twin in testing goes too"
    )
    assert back(first).aliases["1"] == "1-r1", "A was promoted by mistake: it is in testing again"
    with pytest.raises(InputError, match="only one that is live"):
        back(back(first))
    assert back(promoted("A", "B", "C"), to="1-r2").aliases["1"] == "1-r2"


def test_what_a_verb_said_of_dates_a_recipe_does_not_change() -> None:
    recipe = Dates("2027-05-01", "2027-06-01", origin="recipe")
    ledger = changes.publish_entry(Ledger("n"), entry("1-r1"), recipe, EVENT)
    assert ledger.dates["1"] == recipe
    said = Dates("2026-01-01", "2026-12-01", "x/1", "CVE")
    ledger = changes.retire_version(ledger, "1", said, TODAY, EVENT)
    assert "refused from 2026-12-01" in ledger.events[-1].reason
    assert ledger.events[-1].version == "1"
    assert changes.publish_entry(ledger, entry("1-r2"), recipe, EVENT).dates["1"] == said


@pytest.mark.parametrize("to", ["1-r2", "2-r1", "1-r9"])
def test_rollback_refuses_what_makes_no_sense(to: str) -> None:
    with pytest.raises(InputError):
        back(made("1-r1", "1-r2!", "2-r1"), to=to)


def test_the_default_goes_back_with_rollback_and_is_in_the_history() -> None:
    ledger = made("1-r1!", "2-r1", "2-r2!")
    assert ledger.default == "2-r2"
    after = back(ledger, "2")
    assert after.default == "1-r1"
    assert after.aliases["2"] == "2-r1"
    assert after.events[-1].alias == "2-r2 -> 2-r1"
    assert after.events[-1].default == "2-r2 -> 1-r1"


def test_a_pinned_default_stays_until_it_goes() -> None:
    ledger = changes.choose_default(made("1-r1!", "2-r1!"), "1", EVENT)
    assert ledger.default == "1-r1"
    gone = changes.retire_version(ledger, "1", Dates("2026-01-01", TODAY), TODAY, EVENT)
    assert gone.default == "2-r1"
    assert "1" not in gone.aliases
    assert gone.hidden() == ["1-r1"]
    assert changes.choose_default(ledger, "", EVENT).default == "2-r1"
    with pytest.raises(InputError, match="not published"):
        changes.choose_default(ledger, "3", EVENT)


def test_what_was_retired_comes_back_as_it_was() -> None:
    ledger = back(made("1-r1", "1-r2!", "1-r3!"))
    gone = changes.retire_version(ledger, "1", Dates("", TODAY), TODAY, EVENT)
    assert gone.aliases == {}
    assert gone.default == ""
    again = changes.retire_version(gone, "1", Dates(), TODAY, EVENT)
    assert again.aliases == {"1": "1-r2"}
    assert again.entry("1-r3").state == "withdrawn"
    assert again.hidden() == ledger.hidden()


def test_what_is_retired_later_stays_until_then() -> None:
    ledger = changes.retire_version(
        made("1-r1!"), "1", Dates("2026-01-01", "2099-01-01"), TODAY, EVENT
    )
    assert ledger.aliases == {"1": "1-r1"}
    assert ledger.default == "1-r1"
    with pytest.raises(InputError, match="not published"):
        changes.retire_version(ledger, "7", Dates(), TODAY, EVENT)


def test_a_version_past_its_day_is_not_the_default() -> None:
    ledger = changes.retire_version(
        made("1-r1!", "2-r1!"), "2", Dates("2026-01-01", "2026-07-01"), TODAY, EVENT
    )
    assert ledger.default == "2-r1"
    later = changes.publish_entry(
        ledger, entry("1-r2", "production"), Dates(), replace(EVENT, at="2026-07-01")
    )
    assert later.default == "1-r2"


verbs = st.lists(
    st.tuples(
        st.sampled_from(["testing", "production", "back", "retire", "default"]),
        st.sampled_from("123"),
    ),
    max_size=12,
)


@given(verbs)
def test_whatever_is_done_the_ledger_holds(steps: list[tuple[str, str]]) -> None:
    ledger = Ledger("n")
    for what, version in steps:
        try:
            if what in ledgers.CHANNELS:
                one = entry(ledger.next(version, []), what)
                ledger = changes.publish_entry(ledger, one, Dates(), EVENT)
            elif what == "back":
                ledger = back(ledger, version)
            elif what == "retire":
                ledger = changes.retire_version(
                    ledger, version, Dates("2026-01-01", TODAY), TODAY, EVENT
                )
            else:
                ledger = changes.choose_default(ledger, version, EVENT)
        except InputError:
            continue
        names = [one.release for one in ledger.entries]
        assert len(names) == len(set(names)), "no release is made twice"
        assert all(release in names for release in ledger.aliases.values())
        assert not ledger.default or ledger.default in ledger.aliases.values()
        assert not set(ledger.hidden()) & set(ledger.aliases.values())
        assert (
            ledger_format.parse_ledger(json.loads(json.dumps(ledger_format.as_json(ledger))), "x")
            == ledger
        )


@pytest.mark.parametrize(
    "text", ['{"format": "hpcstack/modules/v9"}', "{}", "[]", '{"format": "hpcstack/modules/v1"}']
)
def test_a_damaged_ledger_is_told(text: str) -> None:
    with pytest.raises(StoreError, match="where it is"):
        ledger_format.parse_ledger(json.loads(text), "where it is")


def test_modulerc_for_both() -> None:
    ledger = changes.retire_version(
        made("1-r1", "1-r2!"), "1", Dates("", "2099-01-01", "", 'a "reason"'), TODAY, EVENT
    )
    assert render_modulerc(ledger, ("1-r3",), "modulerc.lua.j2") == (
        "-- Written by hpcstack: which release each version means, which one is the default, and "
        "what avail does not show.\n"
        'do\nmodule_version("pytorch/1-r2", "1")\nmodule_version("pytorch/1-r2", "default")\n'
        'hide_version("pytorch/1-r1")\nhide_version("pytorch/1-r3")\n'
        "if forbid then -- Lmod 8.8 and newer; the modulefiles themselves refuse everywhere\n"
        '    forbid{ name = "pytorch/1-r1", after = "2099-01-01T00:00", message = "pytorch/1 was '
        'retired on 2099-01-01 (a \\"reason\\")" }\n'
        '    forbid{ name = "pytorch/1-r2", after = "2099-01-01T00:00", message = "pytorch/1 was '
        'retired on 2099-01-01 (a \\"reason\\")" }\nend\nend\n'
    )
    assert render_modulerc(ledger, (), "modulerc.tcl.j2") == (
        "#%Module\n"
        "# Written by hpcstack: which release each version means, which one is the default, and "
        "what avail does not show.\n"
        'module-version "pytorch/1-r2" "1"\nmodule-version "pytorch/1-r2" default\n'
        'if { [info commands module-hide] ne "" } {\n    module-hide "pytorch/1-r1"\n}\n'
    )


def test_a_gateway_names_one_folder() -> None:
    assert 'prepend_path("MODULEPATH", "/m/more/x")' in render_gateway("x", "/m/more/x", ".lua")
    assert 'module use "/m/more/x"' in render_gateway("x", "/m/more/x", "")
