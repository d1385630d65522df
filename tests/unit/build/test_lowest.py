"""The base of a build, as its steps find it: where it looks for names, and what mounts it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcstack.build.engines.apptainer import _network
from hpcstack.build.engines.base import Job
from hpcstack.build.engines.enclosure import script
from hpcstack.build.engines.lowest import resolv_conf
from hpcstack.build.engines.overlay import step_folder
from hpcstack.core.progress import Progress
from hpcstack.site.load import BuildSite

pytestmark = pytest.mark.squashfs


def job_of(folder: Path, link: str | None) -> Job:
    """A build on a base whose resolv.conf is LINK, or a file of its own."""
    (folder / "tree/etc").mkdir(parents=True)
    (folder / "work").mkdir()
    (folder / "tree/etc/hosts").touch()
    if link is None:
        (folder / "tree/etc/resolv.conf").touch()
    elif link:
        (folder / "tree/etc/resolv.conf").symlink_to(link)
        if link.startswith("a"):
            (folder / "tree/etc" / link).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree/etc" / link).touch()
    subprocess.run(["mksquashfs", folder / "tree", folder / "base.sqsh", "-quiet", "-no-progress"],
                   check=True, capture_output=True)  # fmt: skip
    here = folder / "work"
    return Job(here, here, here, folder / "base.sqsh", here, here / "out", here / "log", BuildSite(), Progress())


@pytest.mark.parametrize(
    ("link", "place", "bound"),
    [
        (None, "/etc/resolv.conf", "/etc/resolv.conf"),  # as Docker's images have it: empty
        ("../run/systemd/resolve/stub-resolv.conf", "/run/systemd/resolve/stub-resolv.conf", "/run"),
        ("/run/resolvconf/resolv.conf", "/run/resolvconf/resolv.conf", "/run"),
        ("/var/run/NetworkManager/resolv.conf", "/run/NetworkManager/resolv.conf", "/run"),
        ("elsewhere", "/etc/elsewhere", ""),  # which is not there
        ("also", "/etc/also", "/etc/also"),
        ("a,/root:/mnt", "/etc/a,/root:/mnt", ""),  # words that would be another bind
        ("../../../../..", "/", ""),
    ],
)
def test_names_are_looked_up_where_the_base_does(tmp_path: Path, link: str | None, place: str, bound: str) -> None:
    job = job_of(tmp_path, link)
    assert resolv_conf(job) == place
    if not Path("/etc/resolv.conf").is_file():
        pytest.skip("this machine has no resolv.conf")
    found = {target: source for source, target in _network(job) if target != "/etc/hosts"}
    assert list(found) == ([bound] if bound else [])
    if bound:
        copy = found[bound] / place.removeprefix("/run/") if bound == "/run" else found[bound]
        assert copy.read_bytes() == Path("/etc/resolv.conf").read_bytes()


def test_what_a_step_leaves_there_is_not_written_through(tmp_path: Path) -> None:
    """A step may put links into the folder that it saw as /run: the next start makes another one."""
    job = job_of(tmp_path, "/run/x/resolv.conf")
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (first,) = [source for source, target in _network(job) if target == "/run"]
    (first / "x/resolv.conf").unlink()
    (first / "x/resolv.conf").symlink_to(victim)
    (second,) = [source for source, target in _network(replace(job)) if target == "/run"]
    assert second != first and victim.read_text() == "mine"
    assert not (second / "x/resolv.conf").is_symlink()


def test_a_step_s_script_is_not_written_through_either(tmp_path: Path) -> None:
    job = job_of(tmp_path, None)
    first = step_folder(job, "one")
    (first / "step.sh").unlink()
    (first / "step.sh").symlink_to(tmp_path / "victim")
    second = step_folder(job, "two")
    assert not (tmp_path / "victim").exists() and (second / "step.sh").read_text() == "two"


@pytest.mark.parametrize(
    ("link", "place", "told"),
    [("var", "/var/tmp", "/var"), ("var/tmp", "/var/tmp", "/var/tmp"), ("etc/resolv.conf", "/etc/resolv.conf", "/etc/resolv.conf"),
     ("elsewhere", "/var/tmp", ""), ("var/tmp/below", "/var/tmp", "")],
)  # fmt: skip
def test_no_place_for_a_bind_is_made_over_a_link(tmp_path: Path, link: str, place: str, told: str) -> None:
    """bubblewrap would follow it, out of the image: its own root is the machine's then."""
    (tmp_path / "root" / link).parent.mkdir(parents=True)
    (tmp_path / "root" / link).symlink_to("/oldroot/home")
    argv = [sys.executable, script("places.py"), str(tmp_path / "root"), "/proc", place, "--", "echo", "started", "a b"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if told:
        assert done.returncode == 1 and f"the image has a link at {told}," in done.stderr and not done.stdout
    else:
        assert (done.returncode, done.stdout) == (0, "started a b\n")
