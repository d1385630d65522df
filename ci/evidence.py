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
# What a stand-in lacks so that pip would rightly refuse: torchvision of NVIDIA's own.
LACKING = ("vision-25.06",)
FILE = REPO / "recipes/evidence.json"


def recipes() -> list[Recipe]:
    catalog = Catalog([REPO / "recipes"])
    return [recipe for path in catalog.files() for recipe in catalog.read(path)]


def stand_ins() -> set[str]:
    """repository:tag of every stand-in."""
    facts = [json.loads(path.read_text()) for path in (REPO / "ci/standin").rglob("*.json")]
    return {f"{entry['repository']}:{entry['tag']}" for entry in facts}


def stacks() -> list[str]:
    """What can be built here: no GPU compiler is in a stand-in, so what is built from source stays rendered only."""
    there = stand_ins()
    found = [r.stack for r in recipes() if f"{r.stack.base.repository}:{r.stack.base.tag}" in there]
    return sorted(
        stack.full_name
        for stack in found
        if "linux/amd64" in stack.base.platforms and not stack.packages.source and stack.full_name not in LACKING
    )


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
    current = {recipe.stack.full_name: recipe.stack.checksum() for recipe in recipes()}
    kept = {name: record for name, record in sorted(records.items()) if current.get(name) == record["spec_sha256"]}
    FILE.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"{FILE}: {len(kept)} of {len(current)} recipes have been built")


if __name__ == "__main__":
    if sys.argv[1] == "stacks":
        print("\n".join(stacks()))
    else:
        write(Path(sys.argv[2]))
