"""What ci/soak has proven of the recipes that come with the package.

python3 ci/evidence.py stacks          the stacks whose base has a stand-in, one a line
python3 ci/evidence.py write FOLDER    recipes/evidence.json from the marks that ci/soak left in FOLDER
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hpcstack.recipe.catalog import Catalog, Recipe
from hpcstack.recipe.model import Stack

REPO = Path(__file__).resolve().parents[1]
OF_CUDA_12 = (
    "wants a compiler of CUDA 12, and PyPI, where stand-ins have theirs from, has whole ones from "
    "CUDA 13.0 on"
)
OUT_OF_REACH = "what it is built from was out of reach where ci/soak last ran: {}"
# Why a recipe is not even built on a stand-in.
CANNOT = {
    "cuda-25.06": OF_CUDA_12,
    "horovod-24.10": OF_CUDA_12,
    "openmpi-12.9": OF_CUDA_12,
    "megatron-25.12": "a stand-in of PyTorch has no compiler, which Megatron's own extension wants",
    "miniforge-26.3": OUT_OF_REACH.format("conda-forge"),
    "vllm-26.08": "its base is for arm64 alone, and stand-ins are for amd64",
}
FILE = REPO / "recipes/evidence.json"


def recipes() -> list[Recipe]:
    catalog = Catalog([REPO / "recipes"])
    return [recipe for path in catalog.files() for recipe in catalog.read(path)]


def stand_ins() -> set[str]:
    """repository:tag of every stand-in."""
    facts = [json.loads(path.read_text()) for path in (REPO / "ci/standin").rglob("*.json")]
    return {f"{entry['repository']}:{entry['tag']}" for entry in facts}


def out_of_reach(stack: Stack) -> str:
    """The first of STACK's sources that nobody here can fetch; empty where all can be."""
    for source in stack.packages.source:
        argv = ["git", "ls-remote", "--quiet", source.git, "HEAD"]
        try:
            done = subprocess.run(
                argv,
                capture_output=True,
                timeout=20,
                env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            )
        except (OSError, subprocess.TimeoutExpired):
            return source.git
        if done.returncode:
            return source.git
    return ""


def stacks() -> list[str]:
    """What can be built here."""
    there = stand_ins()
    found = [r.stack for r in recipes() if f"{r.stack.base.repository}:{r.stack.base.tag}" in there]
    return sorted(
        stack.full_name
        for stack in found
        if stack.full_name not in CANNOT and not out_of_reach(stack)
    )


def write(done: Path) -> None:
    """A record for each stack that was built; what was proven before of an unchanged spec is kept."""
    records = json.loads(FILE.read_text()) if FILE.exists() else {}
    for recipe in recipes():
        name = recipe.stack.full_name
        tests = sorted(
            path.name for path in done.glob(f"test-{name}-*") if not path.name.endswith(".failed")
        )
        failed = list(done.glob(f"*-{name}*.failed"))
        if (done / f"build-{name}").exists():
            records[name] = {
                "spec_sha256": recipe.stack.checksum(),
                "stand_in": True,
                "tested": bool(tests) and not failed,
                "runtimes": sorted({test.split("-")[-2] for test in tests}),
            }
        elif why := CANNOT.get(name) or (
            OUT_OF_REACH.format(far) if (far := out_of_reach(recipe.stack)) else ""
        ):
            records.setdefault(name, {"spec_sha256": recipe.stack.checksum(), "why_not": why})
    current = {recipe.stack.full_name: recipe.stack.checksum() for recipe in recipes()}
    kept = {
        name: record
        for name, record in sorted(records.items())
        if current.get(name) == record["spec_sha256"]
    }
    FILE.write_text(json.dumps(kept, indent=1) + "\n")
    built = [name for name, record in kept.items() if "why_not" not in record]
    print(f"{FILE}: {len(built)} of {len(current)} recipes have been built")


if __name__ == "__main__":
    if sys.argv[1] == "stacks":
        print("\n".join(stacks()))
    else:
        write(Path(sys.argv[2]))
