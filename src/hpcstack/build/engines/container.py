"""The container in which a program of a base or of a recipe runs, whatever the engine.

Locks and builds use the same one. It lies in the build's enclosure and has the base's tree as its
root (images/enclose.py, `enter --tree`). Only one user id is mapped, so a seccomp filter lets
changes of owner succeed (seccomp.py). Capabilities that no package's script needs are dropped. The
environment consists of the variables that are named here and no others.

Tested in tests/unit/build/test_lowest.py and tests/hostile/test_confinement.py.
"""

from __future__ import annotations

import json
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.engines.enclosure import give_folder_to_builder, give_to_builder
from hpcstack.build.engines.lowest import DNS, in_base, resolv_conf
from hpcstack.build.engines.seccomp import make_filter
from hpcstack.squashfs.inode import FILE

if TYPE_CHECKING:
    from hpcstack.build.engines.base import Job

HOSTS = "/etc/hosts"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Scripts of the base that its shells would run at each start; they are meant for the nodes on which
# an image runs (images/lib.sh).
READ_BY_SHELLS = ("BASH_ENV", "ENV")


def list_container_words(
    job: Job, tree: Path, binds: dict[Path, str], command: list[str], *, sees_files: bool
) -> list[str]:
    """Return the words of `enclose.py enter` that run COMMAND in a container with TREE as root.

    Of this machine COMMAND sees what the site lends, /etc/hosts and resolv.conf, and BINDS, which
    is {folder of the build: its place in the tree}. SEES_FILES says that the engine sees which
    files a step changes, so that the step's script need not look for them.
    """
    # A new folder each time: no program that ran before can have written to it.
    own = Path(tempfile.mkdtemp(prefix="container-", dir=job.work))

    # The base's variables win over the defaults, and those for images/lib.sh over the base's.
    of_base = {name: value for name, value in job.environment.items() if name not in READ_BY_SHELLS}
    variables = {
        "PATH": PATH,
        "HOME": "/root",
        "TERM": "dumb",
        **of_base,
        "HPCSTACK_ONE_ID": "yes",
        "HPCSTACK_LAYERS": "yes",
    }
    if sees_files:
        variables["HPCSTACK_SEES_FILES"] = "yes"
    (own / "environment.json").write_text(json.dumps(variables))
    (own / "filter").write_bytes(make_filter(platform.machine()))
    words = [
        "--tree",
        str(tree),
        "--environment",
        str(own / "environment.json"),
        "--filter",
        str(own / "filter"),
    ]
    scratch = make_scratch(job)
    for source, target in (*binds.items(), (scratch, "/tmp"), (scratch, "/var/tmp")):
        words += ["--bind", str(source), target]
    words += ["--show", str(job.lent), "/mnt"]

    # In a folder apart, because the base decides what the files in it are called.
    words += name_words(job, own / "names")

    give_to_builder(own)
    return [*words, "--", *command]


def name_words(job: Job, own: Path) -> list[str]:
    """Copy the machine's /etc/hosts and resolv.conf into OWN; return the words that show them.

    A file is shown only where the base has a place for it: a file to cover, or /run.
    """
    words: list[str] = []
    for source, place in ((HOSTS, HOSTS), (DNS, resolv_conf(job))):
        if not Path(source).is_file():
            continue

        copy = own / place.lstrip("/")
        if place.startswith("/run/"):
            # /run is empty in images, so all of it is replaced by a folder of the build's.
            copy.parent.mkdir(parents=True, exist_ok=True)
            words += ["--bind", str(own / "run"), "/run"]
        elif (found := in_base(job, place)) and found.kind == FILE:
            copy.parent.mkdir(parents=True, exist_ok=True)
            words += ["--file", str(copy), place]
        else:
            continue
        copy.write_bytes(Path(source).read_bytes())
    return words


def make_scratch(job: Job) -> Path:
    """Make the folder that a step finds at /tmp and /var/tmp, and return it.

    It is neither the machine's nor the image's.
    """
    folder = job.work / "scratch"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)  # as /tmp is; nobody else can enter the workspace around it
    give_folder_to_builder(folder)
    return folder
