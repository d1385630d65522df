"""What a recipe can say of a list of packages: a requirements.txt or an environment.yml.

Tested in tests/unit/draft/test_draft.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.yaml import Mark
from hpcstack.draft.recipe_draft import RecipeDraft
from hpcstack.requirements.environment_yml import read_conda_environment
from hpcstack.requirements.pip_file import read_pip_file

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.requirements.pip_file import PipLine


def draft_requirements(path: Path) -> RecipeDraft:
    """Return what a recipe can say of the requirements.txt PATH. InputError where pip would refuse it."""
    draft = RecipeDraft()
    found = read_pip_file(path, path.absolute().parent)
    for option in found.options:
        draft.leave_out(
            Mark(option.file.name, option.number),
            option.text,
            "the site says where packages come from",
            "build: {pip: ...} of site.yaml names indexes",
        )
    for included in found.remote:
        draft.leave_out(
            Mark(included.file.name, included.number),
            included.text,
            "a file of another machine is not read",
            "put it beside this one",
        )
    _add_lines(draft, found.lines)
    return draft


def draft_environment(path: Path) -> RecipeDraft:
    """Return what a recipe can say of the environment.yml PATH. InputError where it is none."""
    draft = RecipeDraft()
    found = read_conda_environment(path)
    for name, value in found.variables.items():
        with draft.counting():
            draft.set_variable(Mark(path.name, 1), name, value)
    for one in found.of_the_image:
        draft.note(Mark(path.name, one.number), one.text, "the image has its own")
    for one in found.only_conda:
        draft.leave_out(
            Mark(path.name, one.number),
            one.text,
            "only conda has it, or PyPI has it by a name that is not known to be the same",
            "packages: {conda: {packages: [...]}} installs it, with a Python of conda's before the "
            "image's own",
        )
    _add_lines(draft, found.lines)
    return draft


def _add_lines(draft: RecipeDraft, lines: tuple[PipLine, ...]) -> None:
    for line in lines:
        place = Mark(line.file.name, line.number)
        if line.folder or line.is_editable:
            draft.leave_out(
                place,
                line.text,
                "a folder of your own is not part of an image",
                "launch starts your code from where it lies",
            )
            continue
        if line.url or not line.requirement:
            draft.leave_out(
                place,
                line.text,
                "a URL cannot be locked as a version can",
                "packages: {source: [{name: NAME, git: URL, ref: TAG, build: pip install .}]}",
            )
            continue
        with draft.counting():
            if line.is_constraint:
                draft.constraints.append(line.text)
            else:
                draft.add_package("pip", place, line.text)
        if line.hashes:
            draft.note(place, line.text, "the stack's lock pins it by a hash of its own")
