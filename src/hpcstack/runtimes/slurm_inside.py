"""Slurm's commands inside a container: what the image is given, and the helper on the node.

The image gets a folder with small clients that are called srun, squeue and so on. They need
Python's standard library, and nothing of the host's. A client hands its standard streams to a
helper that was started on the node before the container, and which runs the host's own program. So
no library, no plugin and no socket of Slurm's is mounted into the image.

Both talk over an abstract Unix socket, which every container sees that has the node's network.
Under Pyxis, whose container srun makes, a hook of Enroot's starts the helper.

Tested in tests/unit/launch/test_slurm_inside.py and tests/integration/test_slurm_inside.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.dirs import find_data_home
from hpcstack.core.errors import StoreError
from hpcstack.core.files import make_private_folder, write_text
from hpcstack.slurm.options import load_getopt_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

PLACE = "/opt/hpcstack/slurm"  # in the container
ENTRY = f"{PLACE}/inside"
COMMANDS = (
    "sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "sdiag",
    "sinfo", "sprio", "squeue", "sreport", "srun", "sshare", "sstat", "strigger",
)  # fmt: skip
CLIENT = "in-image/slurm_client.py"
HELPER = ("slurm_helper.py", "slurm_lines.py")  # of on-node/
DAY_S = 86_400
KEPT_DAYS = 100  # a job that waits in the queue must still find it


@dataclass(frozen=True)
class SlurmInside:
    """What a step needs so that Slurm's commands can be typed in its containers.

    `folder` has the clients and the helper; it is the same for all steps. `step` is the file that
    says how the containers of this step are started. Nodes see both.
    """

    folder: Path
    step: Path

    @property
    def mount(self) -> str:
        """The mount of the clients, SOURCE:TARGET."""
        return f"{self.folder / 'image'}:{PLACE}"

    def list_words(self) -> tuple[str, ...]:
        """Return the words that stand before a runtime, and start the helper on the node."""
        script = data.read_script("on-node/slurm.sh")
        return ("/bin/sh", "-c", script, "slurm", str(self.folder), str(self.step))

    def make_environment(self) -> dict[str, str]:
        """Return the variables that the hook of Enroot's reads (on-node/slurm-hook.sh)."""
        return {"HPCSTACK_SLURM": f"{self.folder}:{self.step}"}


def wrap_entry(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return COMMAND of a container, which finds Slurm's commands on PATH."""
    return (ENTRY, *command)


def keep_clients(about: Sequence[str]) -> SlurmInside:
    """Return what a step needs; write the clients and the helper where they are missing.

    ABOUT is what distinguishes the step from others of the user's. They lie in the user's data
    folder, under a name that is a digest of them: a job may begin after hpcstack was upgraded.
    Raise StoreError where they cannot be written.
    """
    client = f"#!/usr/bin/env python3\n{data.read_script(CLIENT)}"
    helper = {name: data.read_script(f"on-node/{name}") for name in HELPER}
    entry = data.read_script("in-image/slurm.sh")
    digest = hashlib.sha256("\0".join([client, *helper.values(), entry]).encode()).hexdigest()[:16]
    name = hashlib.sha256("\0".join([digest, *about]).encode()).hexdigest()[:32]
    top = find_data_home() / "hpcstack" / "slurm"
    inside = SlurmInside(top / digest, top / "steps" / f"{name}.json")
    try:
        make_private_folder(top, "name another folder: XDG_DATA_HOME")
        inside.step.parent.mkdir(exist_ok=True)
        _keep_secret(top / "secret")
        commands = inside.folder / "image" / "bin"
        commands.mkdir(parents=True, exist_ok=True)
        _keep_file(inside.folder / "image" / "client", client, 0o755)
        _keep_file(inside.folder / "image" / "inside", entry, 0o755)
        for file, text in helper.items():
            _keep_file(inside.folder / file, text, 0o644)
        links = [commands / command for command in COMMANDS]
        for link in links:
            with contextlib.suppress(FileExistsError):
                link.symlink_to("../client")
        with contextlib.suppress(FileExistsError):
            (inside.folder / "image" / "script").symlink_to("client")
    except OSError as error:
        raise StoreError(
            f"{error.filename}: {error.strerror}: Slurm's commands for the image cannot be put there",
            "name another folder that nodes see: XDG_DATA_HOME",
            page="slurm-inside",
        ) from error
    return inside


def _keep_file(path: Path, text: str, mode: int) -> None:
    """Make PATH hold TEXT."""
    try:
        is_there = path.read_text() == text
    except OSError:
        is_there = False
    if not is_there:
        write_text(path, text, mode)


def _keep_secret(path: Path) -> None:
    """Make a file of this user's at PATH, from which the names of sockets are made."""
    if path.exists():
        return
    part = path.with_name(f".{secrets.token_hex(8)}")
    write_text(part, secrets.token_hex(32) + "\n", 0o600)
    try:
        # The first one stays, whoever else makes one at this moment.
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
    finally:
        part.unlink(missing_ok=True)


def describe_step(
    inside: SlurmInside,
    words: Sequence[str],
    environment: Mapping[str, str],
    image: Iterable[str],
    *,
    by_srun: bool,
) -> None:
    """Write the file of a step that the helper reads.

    WORDS start the container again: they stand between the options and the command of an srun. With
    BY_SRUN they are options of srun's themselves. ENVIRONMENT is what they need besides, and IMAGE
    has the names of the image's own variables.
    """
    document = {
        "commands": COMMANDS,
        "words": list(words),
        "by_srun": by_srun,
        "environment": dict(environment),
        "image": sorted(image),
        "script": f"{PLACE}/script",
        "options": load_getopt_options(),
    }
    write_text(inside.step, json.dumps(document, indent=1) + "\n", 0o600)
    _sweep_steps(inside.step.parent, time.time())


def _sweep_steps(folder: Path, now: float) -> None:
    """Remove the files in FOLDER that have not been used for KEPT_DAYS."""
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > KEPT_DAYS * DAY_S:
                path.unlink()
