"""The base of a build, as its steps find it: where it looks for names, and what mounts it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcstack.build.engines.base import Job
from hpcstack.build.engines.container import name_words
from hpcstack.build.engines.lowest import resolv_conf
from hpcstack.build.engines.overlay import make_step_folder
from hpcstack.core.errors import BuildError
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
    return Job(
        here,
        here,
        here,
        folder / "base.sqsh",
        here,
        here / "out",
        here / "log",
        BuildSite(),
        Progress(),
    )


@pytest.mark.parametrize(
    ("link", "place", "bound"),
    [
        (None, "/etc/resolv.conf", "/etc/resolv.conf"),  # as Docker's images have it: empty
        (
            "../run/systemd/resolve/stub-resolv.conf",
            "/run/systemd/resolve/stub-resolv.conf",
            "/run",
        ),
        ("/run/resolvconf/resolv.conf", "/run/resolvconf/resolv.conf", "/run"),
        ("/var/run/NetworkManager/resolv.conf", "/run/NetworkManager/resolv.conf", "/run"),
        ("elsewhere", "/etc/elsewhere", ""),  # which is not there
        ("also", "/etc/also", "/etc/also"),
        (
            "a,/root:/mnt",
            "/etc/a,/root:/mnt",
            "/etc/a,/root:/mnt",
        ),  # words that were another bind once
        ("../../../../..", "/", ""),
    ],
)
def test_names_are_looked_up_where_the_base_does(
    tmp_path: Path, link: str | None, place: str, bound: str
) -> None:
    job = job_of(tmp_path, link)
    assert resolv_conf(job) == place
    if not Path("/etc/resolv.conf").is_file():
        pytest.skip("this machine has no resolv.conf")
    own = tmp_path / "own"
    own.mkdir()
    words = name_words(job, own)
    found = {
        words[at + 2]: Path(words[at + 1])
        for at in range(0, len(words), 3)
        if words[at + 2] != "/etc/hosts"
    }
    assert list(found) == ([bound] if bound else [])
    if bound:
        copy = found[bound] / place.removeprefix("/run/") if bound == "/run" else found[bound]
        assert copy.read_bytes() == Path("/etc/resolv.conf").read_bytes()


@pytest.mark.parametrize(
    "link", ["/proc/self/root/oldroot/tmp/x", "../proc/1/root/tmp/x", "/dev/shm/x", "/sys/x"]
)
def test_a_resolv_conf_that_leads_into_the_kernels_own_is_refused(
    tmp_path: Path, link: str
) -> None:
    with pytest.raises(BuildError, match=r"resolv\.conf leads to"):
        resolv_conf(job_of(tmp_path, link))


def test_a_step_s_script_is_not_written_through_either(tmp_path: Path) -> None:
    job = job_of(tmp_path, None)
    first = make_step_folder(job, "one")
    (first / "step.sh").unlink()
    (first / "step.sh").symlink_to(tmp_path / "victim")
    second = make_step_folder(job, "two")
    assert not (tmp_path / "victim").exists()
    assert (second / "step.sh").read_text() == "two"
