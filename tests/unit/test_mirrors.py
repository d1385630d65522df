"""Each module has a test file that mirrors it, or its docstring says where it is tested."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hpcstack.cli import VERBS
from hpcstack_smoke.select import CHECKS, TIERS
from support.mirrors import REPO, SOURCE, find_tests, list_modules, mirror_of, parse, read_named

MODULES = list_modules()


def show(module: Path) -> str:
    return str(module.relative_to(SOURCE))


def dotted(module: Path) -> str:
    return ".".join(module.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


NAMES = {dotted(module): module for module in MODULES}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """NODE and all statements in it. `ast.walk` visits expressions, too, and takes ten times as
    long.
    """
    yield node
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for one in getattr(node, field, ()):
            yield from statements(one)


@cache
def own_imports(path: Path) -> frozenset[str]:
    """The names that PATH imports, wherever in the file."""
    found: set[str] = set()
    for node in statements(parse(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


@cache
def imports(path: Path) -> frozenset[str]:
    """The modules of ours that PATH imports, or a file of tests/support that it imports."""
    found = set(own_imports(path))
    for name in own_imports(path):
        support = REPO / "tests" / f"{name.replace('.', '/')}.py"
        if name.startswith("support.") and support.exists():
            found |= own_imports(support)
    return frozenset(found & NAMES.keys())


@cache
def words_for(module: Path) -> list[str]:
    """Patterns of what a test writes to have MODULE run without importing it: a verb that it types,
    an engine, a runtime, a check or a tier of checks.
    """
    name, stem = dotted(module), module.stem.strip("_")
    out = [rf"\b{re.escape(name)}\b"]  # in a program that the test writes
    if stem == "main":
        out += [rf'"-m",\s*"{name.rpartition(".")[0]}"']
    if name.startswith("hpcstack.cli.") and stem in VERBS:
        out += [
            rf'[(\[]\s*(?:\w+,\s*)?"{stem}"',
            rf'"hpcstack",[^\n]*\s"{stem}"',
            rf"\bhpcstack \W?{stem}\b",
        ]
        out += [rf'(?m)^    "{stem}": [(\[]']  # a row of a table of verbs
    if name.startswith(("hpcstack.build.engines.", "hpcstack.runtimes.")):
        out += [rf'"{stem}"']
    for check in CHECKS:
        if f"hpcstack_smoke.{check.where.partition(':')[0]}" == name:
            tiers = TIERS[TIERS.index(check.tier) :] if check.tier in TIERS else (check.tier,)
            out += [rf'"{re.escape(check.code)}"', *(rf'--tier"?,? "?{tier}\b' for tier in tiers)]
    return out


def names_it(path: Path, module: Path) -> bool:
    """Whether the file PATH imports MODULE, or has it run by a name of its own."""
    if path.suffix == ".py" and dotted(module) in imports(path):
        return True
    text = path.read_text()
    return any(re.search(pattern, text) for pattern in words_for(module))


@cache
def all_importers() -> dict[str, set[Path]]:
    """{module: those that import it, or name it in a command that they start}."""
    found: dict[str, set[Path]] = {name: set() for name in NAMES}
    for other in MODULES:
        started = set(re.findall(r'"(hpcstack[\w.]+)"', other.read_text())) & NAMES.keys()
        for name in imports(other) | started:
            found[name].add(other)
    return found


def importers(module: Path) -> set[Path]:
    return all_importers()[dotted(module)]


@cache
def verbs_of(module: Path) -> frozenset[Path]:
    """The verbs that may run MODULE: what they import leads to it."""
    seen: set[Path] = set()
    found = {module}
    while found:
        seen |= found
        found = {other for one in found for other in importers(one)} - seen
    return frozenset(one for one in seen if dotted(one).startswith("hpcstack.cli."))


def reaches(path: Path, module: Path) -> bool:
    """Whether the file PATH names MODULE, or one that imports it or whose imports do.

    Tests of another kind than unit tests may also run a verb whose imports lead to it.
    """
    ways = {module, *importers(module)}
    ways |= {other for one in importers(module) for other in importers(one)}
    if not path.is_relative_to(REPO / "tests/unit"):
        ways |= verbs_of(module)
    return any(names_it(path, one) for one in ways)


def test_each_has_a_mirror_or_says_where_it_is_tested() -> None:
    silent = [show(one) for one in MODULES if not mirror_of(one).exists() and not read_named(one)]
    assert silent == []


def test_none_has_both() -> None:
    assert [show(one) for one in MODULES if mirror_of(one).exists() and read_named(one)] == []


def test_what_is_named_is_there() -> None:
    gone = [
        (show(one), str(path)) for one in MODULES for path in find_tests(one) if not path.exists()
    ]
    assert gone == []


def test_what_is_named_reaches_the_module() -> None:
    """A line that a change has made untrue is found: the file neither imports the module, nor one
    that does, nor runs what leads to it.
    """
    stale = [
        (show(one), str(path.relative_to(REPO)))
        for one in MODULES
        for path in find_tests(one)
        if path.exists() and not reaches(path, one)
    ]
    assert stale == []


def test_a_file_mirrors_one_module() -> None:
    mirrors = Counter(mirror_of(module) for module in MODULES)
    assert [path for path, times in mirrors.items() if times > 1 and path.exists()] == []
