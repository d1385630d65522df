"""The reference pages name everything that they are made of: nothing is dropped without a word.

What the code has is looked up here by other ways than the generator's. No Sphinx is needed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import reference_pages
import yaml
from click.testing import CliRunner
from pydantic import BaseModel

from hpcstack.cli import VERBS, group
from hpcstack.recipe.catalog import Catalog
from hpcstack.recipe.model import Stack
from hpcstack.site.load import Site, load_site
from hpcstack_smoke.select import CHECKS

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs/reference"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("reference")
    return {path.name: path.read_text() for path in reference_pages.write_pages(folder)}


def section(page: str, heading: str) -> str:
    """What stands below HEADING, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", page, re.M | re.S)
    assert found, heading
    return found[1]


def commands() -> list[tuple[str, click.Command]]:
    out = []
    for verb in VERBS:
        command = group.get_command(click.Context(group), verb)
        assert command
        out.append((verb, command))
        if isinstance(command, click.Group):
            out += [(f"{verb} {name}", below) for name, below in command.commands.items()]
    return out


def test_every_verb_and_option_is_there(pages: dict[str, str]) -> None:
    page = pages["verbs.md"]
    for name, command in commands():
        text = section(page, name)
        assert f"hpcstack {name}" in text
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                for word in (*option.opts, *option.secondary_opts):
                    assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text), (name, word)
    for option in group.params:
        assert option.opts[0] in page


def keys_of(model: type[BaseModel], top: str = "") -> list[str]:
    """Every key of MODEL by its path, by the models and not by their schema."""
    out = []
    for name, field in model.model_fields.items():
        path = f"{top}{field.alias or name}"
        out.append(path)
        for inner, step in models_in(field.annotation):
            out += keys_of(inner, f"{path}{step}.")
    return out


def models_in(annotation: Any) -> list[tuple[type[BaseModel], str]]:
    """(model, how it is reached) of each model that ANNOTATION holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [(annotation, "")]
    arguments = [one for one in getattr(annotation, "__args__", ()) if one is not ...]
    origin = getattr(annotation, "__origin__", None)
    if origin is dict:
        return [(model, f".NAME{step}") for model, step in models_in(arguments[1])]
    step = "[]" if origin is tuple else ""
    return [(model, f"{step}{rest}") for one in arguments for model, rest in models_in(one)]


def test_every_key_of_site_yaml_is_there(pages: dict[str, str]) -> None:
    keys = keys_of(Site)
    assert "registries.NAME.mirror" in keys
    assert "fabric.injections.NAME.libraries" in keys
    missing = [key for key in keys if f"| `{key}` |" not in pages["site.md"]]
    assert not missing


def test_every_key_of_a_recipe_is_there(pages: dict[str, str]) -> None:
    keys = keys_of(Stack)
    assert "packages.source[].git" in keys
    assert "environment.NAME.prepend" in keys
    keys += ["extends", "matrix", "matrix.version", "matrix.variant", "matrix.exclude"]
    missing = [key for key in keys if f"| `{key}` |" not in pages["recipe.md"]]
    assert not missing


def test_the_examples_are_valid(tmp_path: Path) -> None:
    assert load_site(str(REFERENCE / "example-site.yaml"), {"HOME": "/tmp"}).site.group
    (tmp_path / "demo.yaml").write_text((REFERENCE / "example-recipe.yaml").read_text())
    catalog = Catalog((tmp_path, ROOT / "recipes"))
    names = [recipe.stack.full_name for recipe in catalog.read(tmp_path / "demo.yaml")]
    assert names == ["demo-24.11", "demo-25.10", "demo-25.10-vision"]


def test_most_keys_have_an_example(pages: dict[str, str]) -> None:
    rows = re.findall(r"^\| `(?:.+?)` \| (.*) \|$", pages["site.md"], re.MULTILINE)
    without = [row for row in rows if row.endswith("|  ")]
    assert len(without) < len(rows) / 3


def test_every_check_is_there(pages: dict[str, str]) -> None:
    for check in CHECKS:
        text = section(pages["checks.md"], check.code)
        assert f"From tier: {check.tier}\n" in text
        assert f"Run by: {reference_pages.SCOPES[check.scope]}" in text
        assert reference_pages.NEEDS[check.needs] in text
        assert reference_pages.what_it_measures(check), check.code


def test_every_gate_is_there_with_its_source(pages: dict[str, str]) -> None:
    facts = yaml.safe_load((ROOT / "facts/gates.yaml").read_text())
    for gate in facts["gates"]:
        if gate["kind"] == "reached":  # it judges no run
            continue
        text = section(pages["checks.md"], gate["code"])
        source = reference_pages.plain(facts["sources"][gate["source"]])
        assert f"{gate['busbw']} GB/s" in text
        assert source in text


def test_every_exit_code_is_there(pages: dict[str, str]) -> None:
    page = pages["exit-codes.md"]
    codes = {"0"}
    for path in (ROOT / "src/hpcstack").rglob("*.py"):
        codes |= set(re.findall(r"^ +exit_code = (\d+)$", path.read_text(), re.MULTILINE))
    main = (ROOT / "src/hpcstack/cli/__init__.py").read_text()
    codes |= set(re.findall(r"sys\.exit\((\d+)\)", main))
    assert {"2", "8", "70", "130"} <= codes
    missing = [code for code in codes if f"\n| {code} | " not in page]
    assert not missing


def test_every_message_is_there(pages: dict[str, str]) -> None:
    page = pages["messages.md"]
    count = 0
    for path in sorted((ROOT / "facts").glob("signatures*.yaml")):
        rows = yaml.safe_load(path.read_text())["signatures"]
        count += len(rows)
        for row in rows:
            text = section(page, row["id"])
            assert reference_pages.plain(row["cause"]) in text, row["id"]
            assert reference_pages.plain(row["remedy"]) in text, row["id"]
            assert f"how-to/{row.get('page', '')}" in text or "page" not in row, row["id"]
            assert "Source: " in text
    assert f"looks for {count} messages" in page


# Variables that one part of hpcstack hands to another within a build, a step or a run.
INSIDE = {
    "AGAINST", "ALLOWED", "APART", "BASE", "BUILD", "BUILD_WITH", "BUILT_AGAINST", "COMPLETE", "CONDA_ALIAS", "CONSTRAINT", "CUDA",
    "DEBUG", "DEV", "DNF", "DRIVER_FILE", "ENROOT_CONFIG", "GUARDED_APT", "GUARDED_FILES", "GUARDED_PIP", "INDEXES", "INDEXES_OF", "INNER", "INSIDE", "KERNEL_KEY", "KERNEL_OF", "KEY",
    "LAYERS", "LEFT", "LENT", "NEAR", "NO_CONDA", "OF_BASE", "ONE_ID", "ORDER", "PLACE", "PODMAN", "PROC", "RATTLER", "SEES_FILES", "SERVED", "SERVER", "SITE_INDEXES",
    "SLURM", "SLURM_BATCH", "SLURM_PWD", "SLURM_SOCKET", "SLURM_STEP",
    "SMOKE_CUDA", "SMOKE_DEVICE", "SMOKE_SCRATCH", "SMOKE_STORE", "SMOKE_STORE_TOKEN", "SQUASHFS", "STEP", "SYS", "UNPACKED", "UV_LOCK", "UV_WITH", "WORK",
}  # fmt: skip


def test_every_variable_is_told_or_is_hpcstacks_own() -> None:
    page = (REFERENCE / "environment.md").read_text()
    told = set(re.findall(r"`_?HPCSTACK_([A-Z0-9_]+)`", page))
    used: set[str] = set()
    for top in ("src", "images", "modules", "launchers"):
        for path in (ROOT / top).rglob("*"):
            if path.is_file() and path.suffix not in (".pyc", ".png"):
                text = path.read_text(errors="replace")
                used |= set(re.findall(r"(?<![A-Z])_?HPCSTACK_([A-Z0-9_]*[A-Z0-9])\b", text))
    assert used - INSIDE - told == set()
    assert told - used == set()


def test_text_of_the_code_is_shown_literally() -> None:
    assert reference_pages.plain("a_b *c* <d> [e] `f_*`") == r"a\_b \*c\* \<d\> \[e\] `f_*`"
    assert reference_pages.cell("a|b\nc") == r"a\|b c"


def test_the_table_of_exit_codes_in_the_architecture_is_the_codes() -> None:
    text = (ROOT / "docs/architecture.md").read_text().partition("## Exit codes")[2]
    told = [int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]
    made = [error.exit_code for error in reference_pages.list_errors()]
    made += [number for number, _ in reference_pages.list_other_exits()]
    assert told == sorted({0, *made})


def test_the_example_of_show_is_what_it_prints() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    (block,) = re.findall(r"^\$ hpcstack (show .*?)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    printed = CliRunner().invoke(group, block[0].split()).output
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert all(" ".join(line.split()) in lines for line in block[1].splitlines())
