"""Which own checks a stack has at a site."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core.errors import ProblemsError
from hpcstack.recipe.model import Stack
from hpcstack.site.load import Site, load_site
from hpcstack.site.own_checks import list_own_checks, list_own_names

SITE = """\
node_types: {genoa: {}}
baselines: {genoa: {site.stream: {value: 700, source: measured}, stack.step: {value: 1, source: x}}}
checks:
- {name: stream, command: stream}
- {name: torch, command: python3 -c 'import torch', stacks: pytorch-*}
"""


def load(folder: Path, text: str = SITE) -> Site:
    path = folder / "site.yaml"
    path.write_text(text)
    return load_site(str(path), {"HOME": str(folder)}).site


def make_stack(name: str) -> Stack:
    return Stack.model_validate(
        {
            "apiVersion": "hpcstack/v1",
            "name": name,
            "version": "1",
            "summary": "a test",
            "base": {"image": "docker.io/library/debian:12"},
            "checks": [{"name": "step", "python": "/opt/step.py"}],
        }
    )


def test_a_stack_has_its_own_and_those_of_the_site_that_are_for_it(tmp_path: Path) -> None:
    site = load(tmp_path)
    pytorch = list_own_checks(make_stack("pytorch"), site)
    assert list(pytorch) == ["site.stream", "site.torch", "stack.step"]
    assert list(list_own_checks(make_stack("jax"), site)) == ["site.stream", "stack.step"]
    assert list_own_names(pytorch) == ["site", "stack", *pytorch]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("- {name: stream, command: x}", "two checks are named 'stream'"),
        (
            "- {name: x, command: x, figures: {a: {pattern: (.), better: higher, gate: {geno: 1}}}}",
            "there is no node type 'geno' (did you mean 'genoa'?)",
        ),
        ("- {name: x, command: x, stack: a}", "did you mean 'stacks'?"),
        ("- {name: x, command: x, sanity_patterns: a}", "(here that is `expect`)"),
    ],
)
def test_what_is_refused(tmp_path: Path, wrong: str, says: str) -> None:
    with pytest.raises(ProblemsError) as refused:
        load(tmp_path, f"{SITE}{wrong}\n")
    assert says in str(refused.value)


def test_a_baseline_names_an_own_check_that_exists(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match=r"there is no check 'site.steam'"):
        load(tmp_path, SITE.replace("site.stream:", "site.steam:"))
