"""What verbs read below folders that others may write, each file: was the gate asked whose it is?

The verbs run as they are typed, by root, on a site with a group that names its publishers. In their
process an audit hook (tests/support/audited) writes down what is opened; what the programs open
that a verb starts, strace says.
"""

from __future__ import annotations

import grp
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from support.gate_audit import AUDITED, UNJUDGED, AuditedSite, find_unjudged
from support.modules import Place

pytestmark = pytest.mark.squashfs
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root acts with more rights than a group")
# What the programs read there that a verb starts: {program: {a part of the path: why}}
OF_PROGRAMS = {
    "spider": {
        "/modules/": "in an enclosure, where copies of what publishers wrote are shown there"
    },
    "lmod": {
        "/dates/": "the trial of the new modulefile, which reads days out of it, as data",
        "/image.sqsh": "the same, which looks whether the image is there",
    },
}
VERBS = (
    "publish jax-26.06",
    "promote pytorch/24.11-r1 --override why",
    "default pytorch/24.11",
    "rollback pytorch/24.11 --reason why --force",
    "undo pytorch",
    "retire pytorch/24.11 --reason why --on 2030-01-01",
    "publish pytorch-24.11",
    "status --check",
    "repair --images",
    "verify --all",
    "sign jax-26.06 --key KEY",
    "verify --signature jax-26.06 --key KEY.pub",
    "images",
    "inspect pytorch-24.11",
    "history pytorch",
    "sbom pytorch-24.11",
    "catalog -o CATALOG",
    "launch jax-26.06 --runtime local --dry-run -- true",
    "gc --no-slurm --older-than 0",
    "sync DECLARED --dry-run",
)


class Audited(NamedTuple):
    """A site whose images are a few bytes, and verbs typed on it."""

    place: Place
    typed: AuditedSite


def pack_image(folder: Path, name: str) -> bytes:
    """A squashfs with the commands that modules offer, and nothing in them."""
    programs = folder / "usr/bin"
    programs.mkdir(parents=True)
    for one in ("torchrun", "deepspeed", "python3", "python"):
        (programs / one).write_text(f"#!/bin/sh\n# {name}\n")
        (programs / one).chmod(0o755)
    image = folder.with_suffix(".sqsh")
    subprocess.run(["mksquashfs", str(folder), str(image), "-quiet", "-no-progress"], check=True)
    return image.read_bytes()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    top = tmp_path_factory.mktemp("site")
    top.chmod(0o755)
    group = grp.getgrgid(os.getegid()).gr_name
    place = Place(top, group=group, modules={"publishers": ["root"]})
    for name in ("first", "second"):
        place.publish(content=pack_image(top / name, name))
    place.artifact(place.stack("jax-26.06"), pack_image(top / "jax", "jax"))
    file = top / "site.yaml"
    said = {
        "store": str(place.site.store),
        "module_root": str(place.site.module_root),
        "lock_dir": str(place.site.lock_dir),
        "group": group,
        "modules": {"publishers": ["root"]},
    }
    file.write_text(yaml.safe_dump(said))
    key = top / "key"
    stands_for = {
        "KEY": key,
        "KEY.pub": key.with_suffix(".pub"),
        "CATALOG": top / "c",
        "DECLARED": top / "declared",
    }
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    (top / "declared").mkdir()
    (top / "declared/all.yaml").write_text("releases: {jax: ['26.06'], pytorch: ['24.11']}\n")
    shared = [place.site.store, place.site.module_root, place.site.lock_dir]
    return Audited(place, AuditedSite(top, file, shared, stands_for))


@root
def test_whatever_a_verb_reads_there_it_has_asked_the_gate_about(site: Audited) -> None:
    read, used = 0, set()
    for verb in VERBS:
        status, opened = site.typed.type(verb)
        assert status == 0, (verb, site.typed.said[-1])
        assert find_unjudged(opened, UNJUDGED) == [], verb
        assert opened, f"{verb}: nothing was seen"
        read += len(opened)
        used |= {name for one in opened for name in one["by"] if not one["judged"]}
    assert read > 100
    assert set(UNJUDGED) <= used, "no verb reads by such a function any more"


@root
@pytest.mark.strace
@pytest.mark.lmod
def test_what_the_programs_read_there_that_a_verb_starts(site: Audited) -> None:
    place, used = site.place, set()
    place.artifact(place.stack("jax-26.06"), pack_image(place.top / "traced", "traced"))
    for verb in ("publish jax-26.06", "sign jax-26.06 --key KEY", "verify --all"):
        for program, path in site.typed.trace(verb):
            known = [part for part in OF_PROGRAMS.get(program, {}) if part in path]
            assert known, f"{verb}: {program} reads {path}"
            used |= {(program, part) for part in known}
    # `dates` of a first release are not there yet.
    assert used >= {("spider", "/modules/"), ("lmod", "/image.sqsh")}


@root
def test_the_hook_sees_what_does_not_ask(site: Audited) -> None:
    """By a path, and relative to a folder that is held open."""
    record = next(site.place.site.store.glob("images/*/artifact.json"))
    reads = (
        "import os, pathlib, sys\n"
        f"path = pathlib.Path({str(record)!r})\n"
        "if sys.argv[1] == 'path': path.read_text()\n"
        "else: os.open(path.name, os.O_RDONLY, dir_fd=os.open(path.parent, os.O_RDONLY))\n"
    )
    for how in ("path", "descriptor"):
        seen = site.place.top / "seen"
        seen.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": str(AUDITED),
            "HPCSTACK_AUDIT_BELOW": str(site.place.site.store),
            "HPCSTACK_AUDIT_TO": str(seen),
        }
        subprocess.run([sys.executable, "-c", reads, how], env=environment, check=True)
        (one,) = map(json.loads, seen.read_text().splitlines())
        assert one["path"] == str(record)
        assert not one["judged"]
