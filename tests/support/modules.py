"""A site with a store and a module tree of its own, whose images are a few bytes; and module
systems, run for real.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hpcstack.core import data
from hpcstack.core.process import Runner
from hpcstack.naming.names import Names
from hpcstack.publish.publishable import Published
from hpcstack.publish.publisher import Publisher
from hpcstack.recipe.catalog import Catalog
from hpcstack.recipe.model import Stack
from hpcstack.releases.tree import Tree
from hpcstack.report import Report
from hpcstack.site.load import Site
from hpcstack.store.artifact import Artifact
from hpcstack.store.store import Store

LMOD = Path(
    os.environ.get("HPCSTACK_TEST_LMOD", "/usr/share/lmod/lmod/libexec/lmod")
)  # another version, by hand
_UNPACKED = Path("/opt/hpcstack-environment-modules/usr/lib")
ENVIRONMENT_MODULES = next(_UNPACKED.glob("*/modulecmd.tcl"), _UNPACKED / "none/modulecmd.tcl")
BOOKS = (
    "_", "SHLVL", "PWD", "OLDPWD", "LMOD_", "__LMOD", "_ModuleTable", "LOADEDMODULES", "_LMFILES_", "MODULEPATH",
    "__MODULES_", "MODULES_FAMILY_", "SHELL", "VENDOR", "MACHTYPE", "OSTYPE", "HOSTTYPE", "HOST", "GROUP", "LOGNAME", "USER",
)  # fmt: skip


def system(which: str) -> str:
    """The command of a module system: `lmod` or `emodules`."""
    return str(LMOD) if which == "lmod" else f"tclsh {ENVIRONMENT_MODULES}"


class Place:
    """A site below TOP. `publish` publishes an image of a few bytes."""

    def __init__(self, top: Path, **site: Any) -> None:
        self.top = top
        self.site = Site.model_validate(
            {
                "store": top / "store",
                "lock_dir": top / "locks",
                "module_root": top / "modules",
                **site,
            }
        )
        self.store = Store(self.site.store, sharing=self.site.sharing)
        self.said: list[str] = []
        self.publisher = Publisher(self.site, self.store, Runner(), self.said.append, slurm=False)

    def with_publishers(self, *names: str) -> Place:
        """The same place, at a site that names its publishers."""
        return Place(self.top, modules={"publishers": list(names)})

    @property
    def tree(self) -> Tree:
        return self.publisher.tree

    def names(self, platform: str = "", **environ: str) -> Names:
        """What names mean here, to somebody with the variables ENVIRON."""
        recipes = Catalog([data.find_data_folder("recipes")])
        return Names(self.site, environ, lambda: recipes, platform)

    def stack(self, name: str = "pytorch-24.11", **changes: Any) -> Stack:
        stack = Catalog([data.find_data_folder("recipes")]).find(name).stack
        return stack.model_copy(update=changes)

    def artifact(self, stack: Stack, content: bytes = b"image", **more: Any) -> Artifact:
        """CONTENT as the image of STACK in the store."""
        digest = hashlib.sha256(content).hexdigest()
        image, log = self.top / f"image-{digest[:12]}", self.top / f"log-{digest[:12]}"
        self.top.mkdir(parents=True, exist_ok=True)
        image.write_bytes(content)
        log.write_text("built\n")
        values: dict[str, Any] = {
            "stack": stack.full_name, "key": hashlib.sha256(stack.full_name.encode() + content).hexdigest()[:24],
            "sha256": digest, "size": len(content), "platform": "linux/amd64", "engine": "apptainer", "lock_sha256": "0" * 64,
            "base": "nvcr.io/nvidia/pytorch:24.11-py3", "stand_in": "", "suite": "0.1.0",
            "facts": {"CUDA": "12.6.3.001", "NCCL": "2.23.4"}, "apt": {}, "pip": {"torch": "2.6.0a0", "deepspeed": "0.16.2"},
            "environment": {"CUDA_VERSION": "12.6.3.001", "LANG": "C.UTF-8"},
        }  # fmt: skip
        return self.store.put(Artifact(**{**values, **more}), image, log)

    def publish(
        self, name: str = "pytorch-24.11", content: bytes = b"image", channel: str = "testing",
        report: Report | None = None, stack: Stack | None = None, **more: Any,
    ) -> Published:  # fmt: skip
        chosen = stack or self.stack(name)
        return self.publisher.publish(
            chosen, self.artifact(chosen, content, **more), channel, report, {}
        )

    def modulerc(self, name: str = "pytorch") -> str:
        return (self.site.module_root / "state" / name / "current/modulerc.lua").read_text()


def report(artifact: Artifact, statuses: dict[str, str], **more: Any) -> Report:
    """A report of ARTIFACT with {code: status}."""
    rows = [
        {"code": code, "status": status, "measured": "", "evidence": "why"}
        for code, status in statuses.items()
    ]
    values: dict[str, Any] = {
        "stack": artifact.stack, "image": str(artifact.image), "image_sha256": artifact.sha256, "suite": artifact.suite,
        "runtime": "apptainer", "tier": "standard", "nodes": ["node1", "node2"], "world_size": 4,
        "started": "2026-11-20T10:00:00+00:00", "seconds": 60.0, "outcomes": rows,
    }  # fmt: skip
    return Report.model_validate({**values, **more})


def modulepath(place: Place, which: str) -> str:
    return str(place.tree.core if which == "lmod" else place.tree.core.with_name("Tcl"))


def clean(place: Place, which: str = "lmod", **more: str) -> dict[str, str]:
    """A login's environment with WHICH system's tree on MODULEPATH and nothing else."""
    home = place.top / "home"
    home.mkdir(exist_ok=True)
    return {"PATH": "/usr/bin:/bin", "HOME": str(home), "MODULEPATH": modulepath(place, which), "TERM": "dumb",
            "LC_ALL": "C.UTF-8", "LMOD_PAGER": "none", "MODULES_PAGER": "", **more}  # fmt: skip


def bash(place: Place, which: str, *lines: str, **more: str) -> subprocess.CompletedProcess[str]:
    """LINES in bash, where `module` is that of WHICH."""
    function = f'module() {{ eval "$({system(which)} bash "$@")"; }}\n'
    return subprocess.run(["bash", "-c", function + "\n".join(lines)], env=clean(place, which, **more), capture_output=True,
                          text=True, check=False)  # fmt: skip


def own(environment: Iterable[str]) -> dict[str, str]:
    """{name: value} of `env -0`'s entries, without the books of shells and module systems."""
    pairs = (entry.partition("=") for entry in environment if "=" in entry)
    return {name: value for name, _, value in pairs if not name.startswith(BOOKS)}


def snapshot(path: Path) -> dict[str, str]:
    return own(path.read_text(errors="surrogateescape").split("\0"))


def seen(place: Place, which: str) -> str:
    """What `avail` shows."""
    return bash(place, which, "module --terse avail 2>&1").stdout


def tree_of(folder: Path) -> dict[str, str]:
    """{path: content or target} of all below FOLDER."""
    out = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            out[name] = f"-> {path.readlink()}"
        elif path.is_file():
            out[name] = path.read_text(errors="replace")
    return out


def ledger_document(place: Place, name: str = "pytorch") -> Any:
    return json.loads((place.site.module_root / "state" / name / "current/ledger.json").read_text())


def environment() -> dict[str, str]:
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]
    return {**os.environ, "PYTHONPATH": ":".join(paths), "MODULES_CMD": str(ENVIRONMENT_MODULES)}


def whole(place: Place) -> None:
    """Every modulefile is whole, every link leads somewhere, and the ledger knows what is there."""
    assert not place.tree.pending()
    assert not place.tree.stale
    ledger = place.tree.ledger("pytorch")
    shown = [one for one in ledger.entries if one.state not in ("removed", "gone")]
    for suffix, home in place.tree.homes("pytorch").items():
        files = {path.name for path in (home / "pytorch").glob("[!.]*")}
        assert files == {f"{one.release}{suffix}" for one in shown}
        for path in (home / "pytorch").iterdir():
            assert path.exists(), f"{path} leads nowhere"
    for one in ledger.entries:
        assert (place.store.top / "releases/pytorch" / one.release / "libexec/run").exists()
    for one in shown:
        text = (place.tree.core / "pytorch" / f"{one.release}.lua").read_text()
        assert text.endswith("\nend\n")
    parts = [
        name
        for name in tree_of(place.top)
        if name.endswith(".part") and "store/incoming" not in name
    ]
    assert not parts, parts
