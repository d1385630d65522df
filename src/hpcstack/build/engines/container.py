"""How a program of a base or of a recipe is started: the one way, whatever the engine, at lock and
at build.

In the build's enclosure, with the base's tree as root (images/enclose.py, `enter --tree`). One user
id is mapped, so a seccomp filter lets changes of owner succeed (seccomp.py); capabilities that no
package's script needs are gone; all of it has the variables that are named here and no others.
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

READ_BY_SHELLS = (
    "BASH_ENV",
    "ENV",
)  # scripts of the base for nodes that it runs on: what images/lib.sh says of them


def container_words(
    job: Job, tree: Path, binds: dict[Path, str], command: list[str], *, sees_files: bool
) -> list[str]:
    """Words of `enclose.py enter` that run COMMAND in TREE: of this machine it sees what the site
    lends, BINDS ({a folder of the build's: its place in the tree}), and the network's names.
    SEES_FILES: the engine sees which files a step changes, and its script need not look.
    """
    own = Path(
        tempfile.mkdtemp(prefix="container-", dir=job.work)
    )  # new: nothing that ran before has been in it
    of_base = {name: value for name, value in job.environment.items() if name not in READ_BY_SHELLS}
    variables = {
        "PATH": PATH,
        "HOME": "/root",
        "TERM": "dumb",
        **of_base,
        "HPCSTACK_ONE_ID": "yes",
        "HPCSTACK_LAYERS": "yes",
        **({"HPCSTACK_SEES_FILES": "yes"} if sees_files else {}),
    }
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
    for source, target in (
        *binds.items(),
        (make_scratch(job), "/tmp"),
        (make_scratch(job), "/var/tmp"),
    ):
        words += ["--bind", str(source), target]
    names = own / "names"  # a folder apart: the base says what the files in it are called
    words += ["--show", str(job.lent), "/mnt", *name_words(job, names)]
    give_to_builder(own)
    return [*words, "--", *command]


def name_words(job: Job, own: Path) -> list[str]:
    """Words that show copies of the machine's /etc/hosts and resolv.conf, made in OWN, where the
    base has a place.
    """
    words: list[str] = []
    for source, place in ((HOSTS, HOSTS), (DNS, resolv_conf(job))):
        if not Path(source).is_file():
            continue
        copy = own / place.lstrip("/")
        if place.startswith(
            "/run/"
        ):  # a folder that is empty in images: all of it is the build's own
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
    """What a step finds at /tmp and /var/tmp: neither the machine's nor the image's."""
    folder = job.work / "scratch"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)  # in a workspace that is the builder's alone
    give_folder_to_builder(folder)
    return folder
