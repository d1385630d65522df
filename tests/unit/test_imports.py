"""Who may import whom (docs/architecture.md): a room its own files and lower rooms.

And `--help` loads nothing of weight.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import hpcstack
import hpcstack_smoke

HOST, SMOKE = Path(hpcstack.__file__).parent, Path(hpcstack_smoke.__file__).parent
# Low to high, one per rank: a file imports its own room or one before it, wherever in the file the
# import stands.
ROOMS = (
    "core", "squashfs", "requirements", "recipe", "draft", "hardware", "slurm", "site", "report", "lock", "oci", "runtimes", "store", "render", "releases",
    "naming", "project", "launch", "build", "imagecache", "resolve", "adopt", "publish", "diagnose", "suite", "sync", "lint", "preview", "bump", "schemas", "cli",
)  # fmt: skip
CHAIN = 13  # files, of which each imports the next when it is loaded
FRAMEWORKS = {
    "torch",
    "deepspeed",
    "horovod",
    "nvidia",
    "numpy",
    "transformers",
    "tokenizers",
}  # what checks may import, in the check itself
HEAVY = ("docker", "spython", "requests", "jinja2", "pydantic", "torch", "rich", "yaml")
EFFECTS = ("core.process", "oci.client", "oci.daemon")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(HOST).with_suffix("").parts).removesuffix(".__init__")


FILES = {
    name_of(path): path
    for path in HOST.rglob("*.py")
    if name_of(path) not in ("__init__", "__main__", "_version")
}


@cache
def imports(path: Path, *, lazy: bool = True) -> frozenset[str]:
    """All modules that a file names in imports, wherever they stand; without LAZY those that it
    loads when it is.
    """
    tree = ast.parse(path.read_text())
    if lazy:
        return names_of(ast.walk(tree))
    return names_of(node for node in tree.body if not isinstance(node, ast.If))


def names_of(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """What the imports among NODES name, as MODULE or MODULE.NAME."""
    out: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            out |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(out)


def of_ours(path: Path, *, lazy: bool = True) -> set[str]:
    """The files of hpcstack's, by name, that PATH imports."""
    found = set()
    for name in imports(path, lazy=lazy):
        target = name.removeprefix("hpcstack.") if name.startswith("hpcstack.") else ""
        while target and target not in FILES:
            target = target.rpartition(".")[0]
        found |= {target} - {""}
    return found - {name_of(path)}


def room(name: str) -> str:
    return name.partition(".")[0]


def test_every_file_has_a_room_and_imports_go_down_only() -> None:
    assert {room(name) for name in FILES} == set(ROOMS)
    wrong = [
        f"{mine} imports {other}"
        for mine, path in FILES.items()
        for other in of_ours(path)
        if ROOMS.index(room(other)) > ROOMS.index(room(mine))
    ]
    assert wrong == []


def test_no_file_imports_itself_by_others() -> None:
    """Lazy imports counted; and what loads when a file is loaded is a short chain."""
    depth: dict[str, int] = {}

    def visit(name: str, way: tuple[str, ...], *, lazy: bool) -> int:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in depth:
            others = of_ours(FILES[name], lazy=lazy)
            depth[name] = 1 + max(
                (visit(one, (*way, name), lazy=lazy) for one in others), default=0
            )
        return depth[name]

    for name in FILES:
        visit(name, (), lazy=True)
    depth.clear()
    assert max(visit(name, (), lazy=False) for name in FILES) <= CHAIN, sorted(
        depth.items(), key=lambda one: -one[1]
    )[:3]


def test_no_verb_imports_a_verb() -> None:
    verbs = {name for name in FILES if name.startswith("cli.") and name.endswith("_")}
    wrong = [
        f"{name} imports {other}"
        for name in verbs
        for other in of_ours(FILES[name])
        if other in verbs
    ]
    assert wrong == []


def test_a_verb_shows_what_one_room_below_has_found() -> None:
    """Policy lies below the command line: a verb calls one room, and at most one more for what it
    shows or is given. `session` makes what verbs work with, and so knows more.
    """
    for name in FILES:
        if room(name) == "cli" and name != "cli.session":
            below = {room(other) for other in of_ours(FILES[name])} - {"cli", "core"}
            assert len(below) <= 2, (name, below)


def test_a_room_says_what_it_is_for() -> None:
    """In two or three lines: what for, what comes in, what goes out."""
    for one in ROOMS:
        if (HOST / one).is_dir():
            said = ast.get_docstring(ast.parse((HOST / one / "__init__.py").read_text())) or ""
            assert len(said) > 60, one


def test_the_host_never_imports_torch_and_the_suite_never_the_host() -> None:
    for path in HOST.rglob("*.py"):
        assert not any(name.split(".")[0] in ("torch", "deepspeed") for name in imports(path)), path
    for path in SMOKE.rglob("*.py"):
        known = {*FRAMEWORKS, "hpcstack_smoke", "__future__"} | set(sys.stdlib_module_names)
        assert {name.split(".")[0] for name in imports(path)} <= known, path


def test_only_three_modules_have_effects() -> None:
    """Others may name a type of these libraries, under `if TYPE_CHECKING`."""
    for path in HOST.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = [ast.Pass()]
        uses = {name.split(".")[0] for name in names_of(ast.walk(tree))}
        assert not uses & {"subprocess", "requests"} or name_of(path) in EFFECTS, path


def test_help_loads_nothing_of_weight() -> None:
    script = (
        f"import sys\ntry:\n    from hpcstack.cli import main; main(['--help'])\nexcept "
        f"SystemExit: pass\nprint([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "Recipes and locks:" in done.stdout
    assert "Trouble:" in done.stdout
    assert done.stderr.strip() == "[]"


def test_no_class_name_is_given_twice() -> None:
    """Each of hpcstack's, and each of the suite's."""
    for top in (HOST, SMOKE):
        names: dict[str, list[str]] = {}
        for path in top.rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    names.setdefault(node.name, []).append(path.name)
        assert {name: files for name, files in names.items() if len(files) > 1} == {}
