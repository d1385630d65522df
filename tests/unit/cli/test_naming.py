"""One table: a text x a verb that takes it. Each verb means the image, or the stack, that all mean.

What a text means is in tests/unit/naming/test_names.py. Here each verb runs, by its own parser, until it
has found what its text means.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest

from hpcstack.cli import group, main
from hpcstack.naming.names import ChosenImage, ImageFile, Names
from hpcstack.recipe.catalog import Catalog, Recipe
from support.modules import Place

# {verb: its words, TEXT where the text stands}
OF_IMAGES = {
    "launch": "launch TEXT --dry-run -- x.py",
    "launch --check": "launch TEXT --check -- x.py",
    "shell": "shell TEXT",
    "python": "python TEXT -- -c 1",
    "jupyter": "jupyter TEXT",
    "project shell": "project shell . TEXT",
    "test": "test TEXT",
    "test --sweep": "test TEXT --sweep",
    "tensorboard": "tensorboard . TEXT",
    "kernel install": "kernel install TEXT",
    "inspect": "inspect TEXT --json",
    "verify": "verify TEXT",
    "sbom": "sbom TEXT",
    "audit": "audit TEXT",
    "sign": "sign TEXT",
    "push": "push TEXT registry.example/x",
}
OF_RECIPES = {
    "show": "show TEXT",
    "lint": "lint TEXT",
    "lock": "lock TEXT",
    "render": "render TEXT",
    "diff": "diff TEXT pytorch-25.10",
    "build": "build TEXT --dry-run",
    "bundle create": "bundle create TEXT",
    "outdated": "outdated TEXT",
    "bump": "bump TEXT --newest --dry-run",
    "publish": "publish TEXT",
}
# Verbs whose text is not one of those, and why
OTHERS = {
    "adopt": "an image that the store has not",
    "cache answer": "an image of a registry",
    "cache get": "an image of a registry",
    "import": "an image of a registry",
    "kernel start": "what `kernel install` wrote",
}
# A of 24.11 is published, B waits, D was built since; C of 25.10 is the default
MEANT = {
    "pytorch-24.11": "A",
    "pytorch/24.11": "A",
    "pytorch/24.11-r1": "A",
    "pytorch-24.11-r2": "B",
    "pytorch": "C",
    "pytorch/25.10": "C",
    "pytorch/24.11@built": "D",
    "jax/26.06": "E",
}
STACKS = {"A": "pytorch-24.11", "B": "pytorch-24.11", "C": "pytorch-25.10"}


class FoundError(BaseException):
    """What the text means is found: nothing more is done."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("verbs"))
    place.publish("pytorch-24.11", b"A", channel="production")
    place.publish("pytorch-24.11", b"B")
    place.publish("pytorch-25.10", b"C", channel="production")
    place.artifact(place.stack("pytorch-24.11"), b"D", engine="builtin")
    place.artifact(place.stack("jax-26.06"), b"E")
    site = {
        "store": place.site.store,
        "lock_dir": place.site.lock_dir,
        "module_root": place.site.module_root,
    }
    (place.top / "site.yaml").write_text(
        "".join(f"{name}: {path}\n" for name, path in site.items())
    )
    return place


@pytest.fixture
def ask(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., str]]:
    for name in [name for name in os.environ if name.startswith(("HPCSTACK_", "SLURM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(words: str, text: str, *patched: Any) -> str:
        """Return what the verb has found when it stops."""
        argv = [text if word == "TEXT" else word for word in words.split()]
        for one in patched:
            one.start()
        try:
            main(["--site", str(place.top / "site.yaml"), *argv])
        except FoundError as found:
            return str(found)
        except SystemExit as ended:
            return f"ended with {ended.code}"
        finally:
            mock.patch.stopall()
        return "ended"

    yield run


def stop_at_image(name: str) -> Any:
    """Stop a verb when `Names.NAME` has answered."""
    plain = getattr(Names, name)

    def found(self: Names, *words: Any, **more: Any) -> Any:
        answer: ChosenImage | ImageFile = plain(self, *words, **more)
        stored = answer.stored if isinstance(answer, ImageFile) else answer.artifact
        raise FoundError(stored.sha256 if stored else "no image of the store")

    return mock.patch.object(Names, name, found)


@pytest.mark.parametrize("verb", OF_IMAGES)
def test_each_verb_means_the_same_image(
    verb: str, place: Place, ask: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    contents = {one.sha256: one.image.read_bytes().decode() for one in place.store.images()}
    found = {}
    for text in MEANT:
        patched = [
            stop_at_image(name) for name in ("find_image", "find_image_file", "find_image_to_run")
        ]
        answer = ask(OF_IMAGES[verb], text, *patched)
        found[text] = contents.get(answer) or answer
    assert found == MEANT, capfd.readouterr().err


def stop_at_recipe() -> Any:
    plain = Catalog.find

    def found(self: Catalog, name: str) -> Recipe:
        raise FoundError(plain(self, name).stack.full_name)

    return mock.patch.object(Catalog, "find", found)


@pytest.mark.parametrize("verb", OF_RECIPES)
def test_each_verb_means_the_same_stack(
    verb: str, ask: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    texts = {text: STACKS[image] for text, image in MEANT.items() if image in STACKS}
    if verb == "bump":
        del texts["pytorch"]  # all of that name: each of them is looked at
    found = {text: ask(OF_RECIPES[verb], text, stop_at_recipe()) for text in texts}
    assert found == texts, capfd.readouterr().err


@pytest.mark.parametrize("words", ["report TEXT", "report TEXT --history"])
def test_runs_are_found_by_the_same_names(words: str, ask: Callable[..., str]) -> None:
    def found(folder: Path) -> None:
        raise FoundError(folder.parent.joinpath(folder.stem).name)

    texts = {text: STACKS[image] for text, image in MEANT.items() if image in STACKS}
    patched = "hpcstack.suite.history.load_history"
    assert {text: ask(words, text, mock.patch(patched, found)) for text in texts} == texts


def test_no_verb_that_takes_a_name_is_left_out() -> None:
    known = {verb.partition(" --")[0] for verb in (*OF_IMAGES, *OF_RECIPES)}
    taking = set()
    context = click.Context(group)
    for verb in group.list_commands(context):
        command = group.get_command(context, verb)
        assert command
        below = command.commands if isinstance(command, click.Group) else {"": command}
        for name, one in below.items():
            metavars = [
                param.make_metavar(context)
                for param in one.params
                if isinstance(param, click.Argument)
            ]
            if re.search("STACK|IMAGE", " ".join(metavars)):
                taking.add(f"{verb} {name}".strip())
    assert taking - known - {"report"} == set(OTHERS)
    assert known <= taking
