"""`shell` and `python`: what somebody is told who sits before them."""

from __future__ import annotations

from hpcstack.cli.interactive import note_packages


def test_a_person_is_told_how_packages_stay() -> None:
    """researcher 20-26: `pip install` in a shell had no hint of --with."""
    note = note_packages(["pytorch-24.11", "-t", "60"], [], "shell", on_terminal=True)
    assert "hpcstack shell --with PACKAGE" in note


def test_nobody_is_told_who_has_asked_or_does_not_sit_there() -> None:
    assert not note_packages(["--with", "einops"], [], "shell", on_terminal=True)
    assert not note_packages(["--with=einops"], [], "shell", on_terminal=True)
    assert not note_packages([], ["-c", "print(1)"], "python", on_terminal=True)
    assert not note_packages([], [], "shell", on_terminal=False)
