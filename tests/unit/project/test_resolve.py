"""What uv's failures mean, by its own words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.core.errors import BuildError, InputError
from hpcstack.core.process import Completed
from hpcstack.project.resolve import explain_uv_failure
from hpcstack.requirements.inputs import Inputs
from unit.launch.test_plan import ARTIFACT

IMAGE = replace(ARTIFACT, pip={"torch": "2.6.0a0", "numpy": "1.26.4"})
INPUTS = Inputs(None, "", (), ("x",), (), "")
HEAD = "error: No solution found when resolving dependencies"
# What uv 0.13 has written for such a list
SAID = {
    "misspelt": (
        [
            HEAD,
            "  cause: Because einopss was not found in the package registry and you require einopss==1, "
            "we can conclude that your requirements are unsatisfiable.",
        ],
        "not on the package index: einopss",
    ),
    "misspelt, as older versions of uv draw it": (
        [
            "  × No solution found when resolving dependencies:",
            "  ╰─▶ Because einopss>=5.0 was not found in the package",
            "  │   registry and you require einopss, we can conclude",
        ],
        "not on the package index: einopss",
    ),
    "git": (
        [
            "error: Failed to download and build `x @ git+https://github.com/a/b`",
            "  cause: Git operation failed",
            "  cause: Git executable not found. Ensure that Git is installed and available.",
        ],
        "has no git",
    ),
    "a conflict with the image": (
        [HEAD, "  cause: Because x depends on numpy>=2 and you require numpy==1.26.4, ..."],
        "no versions fit x on top of .*: the image has numpy 1.26.4",
    ),
    "a conflict": (
        [HEAD, "  cause: Because you require rich>=13 and rich<12, we can conclude ..."],
        "no versions fit x on top of",
    ),
}
ABSENT_FILE = [
    "error: Failed to download and build `rich @ https://pypi.org/nope/rich-1.tar.gz`",
    "  cause: HTTP status client error (404 Not Found) for url (https://pypi.org/nope/rich-1.tar.gz)",
]


@pytest.mark.parametrize("what", SAID)
def test_what_the_user_wrote_is_named(what: str, tmp_path: Path) -> None:
    """researcher 13: a misspelt package and a git URL were "no versions fit ... older versions"."""
    lines, head = SAID[what]
    done = Completed(("uv",), 1, tuple(lines))
    error = explain_uv_failure(done, INPUTS, IMAGE, make_site(tmp_path))
    assert isinstance(error, InputError)
    with pytest.raises(InputError, match=head):
        raise error
    assert ("older versions" in error.hint) == ("conflict" in what)


def test_what_is_not_understood_is_said_as_it_is(tmp_path: Path) -> None:
    done = Completed(("uv",), 1, tuple(ABSENT_FILE))
    error = explain_uv_failure(done, INPUTS, IMAGE, make_site(tmp_path))
    assert isinstance(error, BuildError)
    assert "404 Not Found" in error.message
