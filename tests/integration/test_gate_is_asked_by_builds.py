"""What the verbs that make an image read below folders that others may write: was the gate asked
whose it is? As tests/hostile/test_gate_is_asked.py, by real builds.
"""

from __future__ import annotations

import grp
import os
from pathlib import Path

import pytest

from support.gate_audit import UNJUDGED, UNJUDGED_BY_BUILDS, AuditedSite, find_unjudged
from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.builds,
    pytest.mark.registry,
    pytest.mark.squashfs,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root acts with more rights than a group"),
]
RECIPE = """\
apiVersion: hpcstack/v1
name: demo
version: "1"
summary: a test
base: {{image: {base}}}
run: [{{name: say, command: "echo said > /said"}}]
launch: {{mode: plain}}
"""
VERBS = (
    "lock demo-1",
    "build demo-1 --engine builtin",
    "build demo-1 --engine builtin",
    "build demo-1 --engine builtin --no-cache",
    "lock demo-1 --check",
    "list",
    "find file:said",
    "bundle create demo-1 -o BUNDLE",
    "build demo-1 --engine builtin --no-cache --squash",
    "bundle apply BUNDLE --recipes-to AWAY",
    "build demo-1 --engine builtin --no-cache --offline",
    "push demo-1 PUSHED:1 --unsigned --with-base",
    "pull PUSHED:1 --unsigned",
    "publish demo-1",
    "verify --all",
    "gc --no-slurm",
)


@pytest.fixture
def site(testbed: Testbed, tiny_base: str, tmp_path: Path) -> AuditedSite:
    """A site of root's and root's group on the testbed's registry, with a recipe."""
    tmp_path.chmod(0o755)
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    (recipes / "demo-1.yaml").write_text(RECIPE.format(base=tiny_base))
    shared = {name: tmp_path / name for name in ("store", "lock_dir", "module_root")}
    known = (testbed.folder / "etc/site.yaml").read_text().splitlines()
    kept = [one for one in known if not one.startswith((*shared, "image_cache"))]
    at = kept.index("registries:") + 1
    kept.insert(at, f'  "{testbed.registry}": {{plain_http: true}}')
    own = [f"{key}: {folder}" for key, folder in shared.items()]
    own += [
        f"recipe_dirs: [{recipes}]",
        f"group: {grp.getgrgid(os.getegid()).gr_name}",
        "locks: site",
        "modules: {publishers: [root]}",
    ]
    file = tmp_path / "site.yaml"
    file.write_text("\n".join([*kept, *own]) + "\n")
    pushed = f"{testbed.registry}/pushed/gate-{tmp_path.parent.name}"
    stands_for = {
        "BUNDLE": tmp_path / "bundle",
        "AWAY": tmp_path / "away",
        "PUSHED:1": Path(f"{pushed}:1"),
    }
    return AuditedSite(tmp_path, file, list(shared.values()), stands_for)


def test_whatever_a_build_reads_there_it_has_asked_the_gate_about(site: AuditedSite) -> None:
    used: set[str] = set()
    known = UNJUDGED | UNJUDGED_BY_BUILDS
    for verb in VERBS:
        status, opened = site.type(verb)
        assert status == 0, (verb, site.said[-1])
        assert find_unjudged(opened, known) == [], verb
        used |= {name for one in opened for name in one["by"] if not one["judged"]}
    assert set(UNJUDGED_BY_BUILDS) <= used, "no verb reads by such a function any more"
