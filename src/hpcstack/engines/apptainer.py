"""Apptainer, as an ordinary user: `apptainer build`, then the squashfs is taken out of the SIF as it is.

Defaults taken: user namespaces or fakeroot as Apptainer chooses; the site's compression, level 1 for zstd (1.2 GB:
22 s against 112 s with the default gzip).
"""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from hpcstack.engines.base import Job
from hpcstack.process import Completed, Runner
from hpcstack.store import copy_range

SQUASH = {"zstd": "-comp zstd -Xcompression-level 1", "gzip": "-comp gzip", "xz": "-comp xz", "lz4": "-comp lz4"}
OFFSET, SIZE = re.compile(r"Offset:\s*(\d+)"), re.compile(r"Size:\s*(\d+)")
PARTITION = re.compile(r"^(\d+)\s*\|.*\|FS \(Squashfs/\*System/", re.MULTILINE)


def build_argv(job: Job, sif: Path) -> list[str]:
    """The build's argv. What the site lends is bound at /mnt, for the time of the build."""
    return [
        "apptainer", "build", "--force",
        "--bind", f"{job.lent}:/mnt",
        "--mksquashfs-args", SQUASH[job.settings.compression],
        str(sif), "apptainer.def",
    ]  # fmt: skip


def inside_argv(base: Path, folder: Path, job: Job) -> list[str]:
    """A container of its own: no home, no variables of the host, /tmp on the build's disk, the base read-only."""
    return [
        "apptainer", "--quiet", "exec", "--containall", "--no-home", "--cleanenv",
        "--workdir", str(job.work / "scratch"),
        "--bind", f"{folder}:/opt/hpcstack", "--bind", f"{job.lent}:/mnt", "--pwd", "/",
        str(base), "/bin/bash", "/opt/hpcstack/build/settle.sh",
    ]  # fmt: skip


def environment(job: Job, home: Path) -> dict[str, str]:
    """Where Apptainer works and caches, and the home in which it finds the site's registries.conf.

    The user's own logins are linked into that home by `prepare`.
    """
    proxy, bundle = job.settings.proxy, job.settings.ca_bundle
    said = {"http_proxy": proxy.http, "https_proxy": proxy.https, "no_proxy": proxy.no, "SSL_CERT_FILE": bundle}
    return {
        **{name: value for name, value in said.items() if value},
        "HOME": str(home),
        "APPTAINER_TMPDIR": str(job.work),
        "APPTAINER_CACHEDIR": job.settings.cachedir
        or os.environ.get("APPTAINER_CACHEDIR")
        or str(Path.home() / ".apptainer/cache"),
        "APPTAINER_CONFIGDIR": str(home / ".apptainer"),
    }


def partition(listing: str) -> str:
    """The id of the system partition in what `apptainer sif list` prints."""
    match = PARTITION.search(listing)
    if not match:
        raise ValueError(f"no system partition in: {listing[:400]}")
    return match[1]


def prepare(job: Job) -> Path:
    """A home for the build: the site's registries.conf, and the user's logins by link."""
    home = job.work / "home"
    conf = home / ".config/containers/registries.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text((job.work / "registries.conf").read_text())
    (home / ".apptainer").mkdir()
    (job.work / "scratch").mkdir()
    write_logins(job, home / ".apptainer/docker-config.json")
    user = Path.home()
    for login in (".docker", ".apptainer/docker-config.json"):
        if (user / login).exists() and not (home / login).exists():
            (home / login).symlink_to(user / login)
    return home


def _own_logins() -> dict[str, object]:
    """What the user has told Apptainer itself."""
    try:
        found = json.loads((Path.home() / ".apptainer/docker-config.json").read_text()).get("auths") or {}
    except (OSError, ValueError, AttributeError):
        found = {}
    return found if isinstance(found, dict) else {}


def write_logins(job: Job, path: Path) -> None:
    """The logins that only hpcstack knows (a file of the site's, Enroot's), in the form that Apptainer reads.

    Readable for the builder alone, in the build's private folder, and gone with it.
    """
    if not job.logins:
        return
    auths = _own_logins()
    auths |= {host: {"auth": base64.b64encode(f"{user}:{key}".encode()).decode()} for host, (user, key) in job.logins}
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"auths": auths}, file)


@dataclass(frozen=True)
class Apptainer:
    name: str = "apptainer"
    tools: tuple[str, ...] = ("apptainer", "mksquashfs", "unsquashfs")

    def build(self, job: Job, runner: Runner) -> Completed:
        sif = job.work / "image.sif"
        env = environment(job, prepare(job))
        done = runner.logged(build_argv(job, sif), job.log, env=env, cwd=job.context, on_line=job.on_line)
        if done.status:
            return done
        listing = runner.output(["apptainer", "sif", "list", str(sif)])
        if listing.status:
            return listing
        return self._extract(sif, partition(listing.stdout), job, runner)

    def run_inside(self, base: Path, folder: Path, job: Job, runner: Runner) -> Completed:
        home = prepare(job)
        return runner.logged(
            inside_argv(base, folder, job), job.log, env=environment(job, home), cwd=folder, on_line=job.on_line
        )

    def _extract(self, sif: Path, number: str, job: Job, runner: Runner) -> Completed:
        """The partition's bytes into job.output, as they are."""
        info = runner.output(["apptainer", "sif", "info", number, str(sif)])
        text = info.stdout
        offset, size = OFFSET.search(text), SIZE.search(text)
        if info.status or not offset or not size:
            return Completed(info.argv, info.status or 1, info.tail)
        copy_range(sif, job.output, int(offset[1]), int(size[1]))
        sif.unlink()
        return info


ENGINE = Apptainer()
