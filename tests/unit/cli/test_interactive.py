"""`shell` and `python`: what somebody is told who sits before them, and how their words are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from hpcstack.cli.interactive import Interactive, note_packages, takes_launch
from hpcstack.launch.request import LaunchRequest

SHELL = LaunchRequest(("bash",))


def test_a_person_is_told_how_packages_stay() -> None:
    """researcher 20-26: `pip install` in a shell had no hint of --with."""
    assert "hpcstack shell --with PACKAGE" in note_packages(SHELL, "shell", on_terminal=True)


@pytest.mark.parametrize(
    "request_",
    [
        LaunchRequest(("bash",), packages=("einops",)),
        LaunchRequest(("bash",), project=Path()),
        LaunchRequest(("python3", "-c", "print(1)")),
    ],
)
def test_nobody_is_told_who_has_asked(request_: LaunchRequest) -> None:
    assert not note_packages(request_, "python", on_terminal=True)


def test_nobody_is_told_who_does_not_sit_there() -> None:
    assert not note_packages(SHELL, "shell", on_terminal=False)


@click.command("verb", cls=Interactive)
@click.argument("folder", default="")
@takes_launch
@click.pass_context
def verb(ctx: click.Context, /, **options: Any) -> None: ...


@pytest.mark.parametrize(
    ("words", "folder", "name", "argv"),
    [
        ([], "", "", ()),
        (["--", "-x"], "", "", ("-x",)),
        (["a", "--", "x", "y"], "a", "", ("x", "y")),
        (["a", "b"], "a", "b", ()),
        (["a", "-t", "60", "b", "--mem", "4G", "train.py", "--lr", "1"], "a", "b", ("train.py", "--lr", "1")),
        (["--with", "x.py", "a"], "a", "", ()),
        (["-N1", "-m", "pip"], "", "", ("-m", "pip")),
    ],
)  # fmt: skip
def test_words_before_the_dashes_are_hpcstacks(
    words: list[str], folder: str, name: str, argv: tuple[str, ...]
) -> None:
    context = verb.make_context("verb", words)
    found = context.params
    assert (found["folder"], found["name"], found["argv"]) == (folder, name, argv)
    assert context.meta["passed"] == (("--mem=4G",) if "--mem" in words else ())


def test_the_options_of_a_launch_are_taken_and_not_listed() -> None:
    shown = verb.get_help(verb.make_context("verb", []))
    assert "--partition" not in shown
    assert verb.make_context("verb", ["-p", "gpu"]).params["partition"] == "gpu"
