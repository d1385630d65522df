"""A runtime's words are its own: whoever launches by it, or tests with it, asks the runtime.

What else names one reads what it has written (a log, an image), asks for its program on a machine, or
says something to people.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import hpcstack
from hpcstack.runtimes import RUNTIMES, find_plain_name

PACKAGE = Path(hpcstack.__file__).parent
WORDS = re.compile(r"(?i)apptainer|singularity|enroot|pyxis|podman|charliecloud")
ROOMS = ("launch", "suite", "cli", "naming", "sync", "project", "slurm")
# {file: why it may}
MAY = {
    "launch/failure.py": "reads what Pyxis writes into a log",
    "launch/variables.py": "names the thread about MPI in Apptainer",
    "cli/__init__.py": "the line of a verb's help",
    "cli/build_.py": "names the engines of builds",
    "cli/import_.py": "says to people how Enroot names files",
    "cli/site_.py": "says to administrators how Pyxis is set up",
    "project/inside.py": "runs the image's own pip by the engine of builds",
}


def list_named(path: Path) -> list[str]:
    """The texts in PATH that name a runtime and are no description of something."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    described = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [
        node.value
        for node in texts
        if isinstance(node.value, str) and id(node) not in described and WORDS.search(node.value)
    ]


def test_nobody_who_launches_names_a_runtime() -> None:
    paths = [path for room in ROOMS for path in sorted((PACKAGE / room).rglob("*.py"))]
    named = {str(path.relative_to(PACKAGE)): list_named(path) for path in paths}
    assert {path: words for path, words in named.items() if words and path not in MAY} == {}
    assert {path for path in MAY if not named[path]} == set(), "needs no exception any more"


@pytest.mark.parametrize(
    ("name", "plain"),
    [("APPTAINERENV_MINE", "MINE"), ("MINE", "MINE"), ("APPTAINER_NO_EVAL", "APPTAINER_NO_EVAL")],
)
def test_a_variable_has_one_name_in_the_container(name: str, plain: str) -> None:
    assert find_plain_name(name) == plain


def test_a_second_container_is_started_as_the_first_was() -> None:
    argv = [
        "srun",
        "-N",
        "2",
        "sh",
        "-c",
        "x",
        "shield",
        "apptainer",
        "--quiet",
        "exec",
        "--bind",
        "/d.sqsh:/d",
        "--pwd",
        "/h",
        "/s/image.sqsh",
        "a.py",
        "x.sif",
    ]
    start = RUNTIMES["apptainer"].find_second_start(argv)
    assert start == argv[argv.index("apptainer") : argv.index("/s/image.sqsh") + 1]
    assert RUNTIMES["apptainer"].find_second_start(["srun", "true"]) == []
    assert RUNTIMES["pyxis"].find_second_start(argv) == []
