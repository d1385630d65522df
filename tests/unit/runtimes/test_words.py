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
# The runtimes themselves, and the engines of builds, of which two are named alike
THEIR_OWN = ("runtimes", "build/engines")
# {file: why it may}
MAY = {
    "adopt/survey.py": "reads what Enroot and Apptainer have left in an image",
    "adopt/import_sif.py": "says to people what an image is given for Enroot",
    "build/verify.py": "says to people whose signature a SIF has",
    "cli/__init__.py": "the line of a verb's help",
    "cli/build_.py": "names the engines of builds",
    "cli/import_.py": "says to people how Enroot names files",
    "cli/site_.py": "says to administrators how Pyxis is set up",
    "core/names.py": "the names themselves, for those who may not import runtimes/",
    "core/process.py": "says to people which package a program is in",
    "diagnose/advice.py": "says to administrators what a node lacks",
    "diagnose/checks.py": "asks for programs and hooks on a node",
    "diagnose/mounting.py": "says how fast each of them mounts",
    "diagnose/pyxis.py": "reads how Pyxis is set up",
    "diagnose/run.py": "asks which programs a machine has",
    "draft/draft.py": "knows a definition file by its name",
    "draft/from_definition.py": "variables of Apptainer's builds",
    "draft/image_names.py": "reads names of images as each of them writes them",
    "launch/failure.py": "reads what Pyxis writes into a log",
    "launch/variables.py": "names the thread about MPI in Apptainer",
    "oci/compare.py": "leaves out what Apptainer writes into each image",
    "oci/credentials.py": "reads the logins of Apptainer and Enroot",
    "oci/daemon.py": "says to people which socket is podman's",
    "oci/metadata.py": "writes what each of them reads in an image",
    "oci/protocol.py": "says to people where logins are kept",
    "preview.py": "names a rendered file",
    "project/inside.py": "runs the image's own pip by the engine of builds",
    "publish/modulefile.py": "says to people how an image is run without hpcstack",
    "recipe/fields.py": "knows what each of them changes in values",
    "recipe/model.py": "variables that a recipe may not set",
    "recipe/packages.py": "describes a key to people",
    "render/image.py": "names the templates",
    "render/readback.py": "reads rendered files",
    "schemas.py": "an example of a key's value",
    "site/discover.py": "asks which programs a machine has",
    "site/load.py": "describes a key to people",
    "site/model.py": "names the engines of builds",
    "site/write.py": "writes what was found on a machine",
    "store/sif.py": "takes a SIF apart by Apptainer's own program",
    "store/signing.py": "signs a SIF by Apptainer's own program",
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


def test_nobody_but_a_runtime_has_its_words() -> None:
    files = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
    others = {name: path for name, path in files.items() if not name.startswith(THEIR_OWN)}
    named = {name: list_named(path) for name, path in others.items()}
    assert {name: words for name, words in named.items() if words and name not in MAY} == {}
    assert {name for name in MAY if not named[name]} == set(), "needs no exception any more"


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
