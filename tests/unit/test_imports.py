"""Who may import whom (docs/architecture.md): down only. And `--help` loads nothing of weight."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import hpcstack
import hpcstack_smoke

HOST, SMOKE = Path(hpcstack.__file__).parent, Path(hpcstack_smoke.__file__).parent
LAYERS = (
    ("cli",),
    (
        "build",
        "settle",
        "locking",
        "workspace",
        "probe",
        "siteinit",
        "modules",
        "releases",
        "named",
        "launch",
        "validate",
        "importing",
        "bases",
        "verifying",
        "signing",
        "collect",
        "batch",
        "bundle",
        "bundle_apply",
        "ordering",
        "sbom",
        "sif",
        "jobs",
        "examine",
        "mpistep",
        "sweep",
    ),
    ("engines", "runtimes", "render", "lock.resolve", "lock.inside"),
    ("sources", "importing"),
    ("process", "registry", "credentials", "store", "outputs", "cache", "lease", "blobs", "inflate", "daemon"),
    (
        "spec",
        "lock",
        "site",
        "siteparts",
        "report",
        "facts",
        "fit",
        "explain",
        "failure",
        "sizing",
        "doctor",
        "remedies",
        "lint",
        "evidence",
        "fabric",
        "oci",
        "logins",
        "outcomes",
        "history",
        "gates",
        "judging",
        "modules.ledger",
        "modules.changes",
        "modules.publishable",
        "modules.gate",
    ),
    (
        "errors",
        "sharing",
        "files",
        "data",
        "cpus",
        "modules.paths",
        "modules.words",
        "yamlfile",
        "render.quote",
        "talk",
    ),
)
FRAMEWORKS = {"torch", "deepspeed", "horovod", "nvidia", "numpy"}  # what checks may import, in the check itself
HEAVY = ("docker", "spython", "requests", "jinja2", "pydantic", "torch", "rich", "yaml")


def layer(module: str) -> int:
    """How far down MODULE (without `hpcstack.`) lies."""
    names = [(number, name) for number, names in enumerate(LAYERS) for name in names]
    fitting = [(len(name), number) for number, name in names if module == name or module.startswith(f"{name}.")]
    assert fitting, f"{module} has no place in the architecture"
    return max(fitting)[1]


def imports(path: Path) -> set[str]:
    """All modules that a file names in imports, wherever they stand."""
    out: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            out |= {f"{node.module}.{alias.name}" for alias in node.names}
    return out


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(HOST).with_suffix("").parts).removesuffix(".__init__")


def test_imports_go_down_only() -> None:
    wrong = []
    for path in sorted(HOST.rglob("*.py")):
        mine = name_of(path)
        if mine in ("__init__", "__main__"):
            continue
        for imported in imports(path):
            target = imported.removeprefix("hpcstack.")
            if (
                imported.startswith("hpcstack.")
                and target not in ("__version__", "OWN_VARIABLES")
                and layer(target) < layer(mine)
            ):
                wrong.append(f"{mine} imports {imported}")
    assert wrong == []


def test_the_host_never_imports_torch_and_the_suite_never_the_host() -> None:
    for path in HOST.rglob("*.py"):
        assert not any(name.split(".")[0] in ("torch", "deepspeed") for name in imports(path)), path
    for path in SMOKE.rglob("*.py"):
        known = {*FRAMEWORKS, "hpcstack_smoke", "__future__"} | set(sys.stdlib_module_names)
        assert {name.split(".")[0] for name in imports(path)} <= known, path


def test_only_three_modules_have_effects() -> None:
    for path in HOST.rglob("*.py"):
        uses = {name.split(".")[0] for name in imports(path)} & {"subprocess", "requests"}
        assert not uses or name_of(path) in ("process", "registry", "daemon"), path


def test_help_loads_nothing_of_weight() -> None:
    script = f"import sys\ntry:\n    from hpcstack.cli import main; main(['--help'])\nexcept SystemExit: pass\nprint([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "Verbs" in done.stdout
    assert done.stderr.strip() == "[]"


def test_files_and_functions_stay_small() -> None:
    sizes = {path: len(path.read_text().splitlines()) for folder in (HOST, SMOKE) for path in folder.rglob("*.py")}
    assert {str(path): size for path, size in sizes.items() if size > 350} == {}
