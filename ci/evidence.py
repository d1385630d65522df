"""What ci/soak has proven of the recipes that come with the package.

python3 ci/evidence.py stacks          the stacks whose base has a stand-in, one a line
python3 ci/evidence.py write FOLDER    recipes/evidence.json from the marks that ci/soak left in FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hpcstack.recipe.catalog import Catalog, Recipe

REPO = Path(__file__).resolve().parents[1]
FROM_GITHUB = "is built from a repository on GitHub, which was out of reach where ci/soak last ran"
# Why a recipe is not even built on a stand-in.
CANNOT = {
    "cuda-25.06": f"nccl-tests {FROM_GITHUB}; it also wants a CUDA compiler",
    "cuda-26.08": f"nccl-tests {FROM_GITHUB}; it also wants a CUDA compiler",
    "horovod-24.10": f"Horovod {FROM_GITHUB}; it also wants a CUDA compiler",
    "megatron-25.12": f"Megatron-LM {FROM_GITHUB}",
    "miniforge-26.3": "its packages come from conda-forge, which was out of reach where ci/soak last ran",
    "openmpi-12.9": f"nccl-tests {FROM_GITHUB}; it also wants a CUDA compiler",
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


def stacks() -> list[str]:
    """What can be built here."""
    there = stand_ins()
    found = [r.stack for r in recipes() if f"{r.stack.base.repository}:{r.stack.base.tag}" in there]
    return sorted(stack.full_name for stack in found if stack.full_name not in CANNOT)


def write(done: Path) -> None:
    """A record for each stack that was built; what was proven before of an unchanged spec is kept."""
    records = json.loads(FILE.read_text()) if FILE.exists() else {}
    for recipe in recipes():
        name = recipe.stack.full_name
        tests = sorted(path.name for path in done.glob(f"test-{name}-*") if not path.name.endswith(".failed"))
        failed = list(done.glob(f"*-{name}*.failed"))
        if (done / f"build-{name}").exists():
            records[name] = {
                "spec_sha256": recipe.stack.checksum(),
                "stand_in": True,
                "tested": bool(tests) and not failed,
                "runtimes": sorted({test.split("-")[-2] for test in tests}),
            }
        elif name in CANNOT and name not in records:
            records[name] = {"spec_sha256": recipe.stack.checksum(), "why_not": CANNOT[name]}
    current = {recipe.stack.full_name: recipe.stack.checksum() for recipe in recipes()}
    kept = {name: record for name, record in sorted(records.items()) if current.get(name) == record["spec_sha256"]}
    FILE.write_text(json.dumps(kept, indent=1) + "\n")
    built = [name for name, record in kept.items() if "why_not" not in record]
    print(f"{FILE}: {len(built)} of {len(current)} recipes have been built")


if __name__ == "__main__":
    if sys.argv[1] == "stacks":
        print("\n".join(stacks()))
    else:
        write(Path(sys.argv[2]))
