"""How Pyxis starts an image here: mounted, or unpacked on each node before each step; and what that costs.

https://github.com/NVIDIA/pyxis/wiki/Setup: use_squashfuse=1, from Pyxis 0.22 on.
"""

from __future__ import annotations

import glob
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.core.files import read_text
from hpcstack.diagnose.advice import Finding, fine, wrong
from hpcstack.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.core.process import Runner
    from hpcstack.site.load import Site

CONFIG = re.compile(r"^PlugStackConfig\s*=\s*(/\S+)", re.MULTILINE)
LINE = re.compile(r"^\s*(?:required|optional)\s+\S*spank_pyxis\.so(?:\s+(.*))?$", re.MULTILINE)
INCLUDE = re.compile(r"^\s*include\s+(/\S+)", re.MULTILINE)
MOUNTS = re.compile(r"(?:^|\s)use_squashfuse=(?:1|true|yes)(?:\s|$)")
LIMIT_S = 600
MOUNT = """\
at=$(mktemp -d) || exit 1
program=squashfuse_ll
command -v "$program" >/dev/null || program=squashfuse
"$program" "$1" "$at" && ls "$at" >/dev/null
status=$?
fusermount3 -u "$at" 2>/dev/null || fusermount -u "$at"
rmdir "$at"
exit "$status"
"""


def read_options(runner: Runner) -> str | None:
    """What stands behind spank_pyxis.so in plugstack.conf; None where that cannot be known from here."""
    found = CONFIG.search(runner.output(["scontrol", "show", "config"], timeout=20).stdout)
    texts = [_text(Path(found[1]))] if found else []
    for pattern in INCLUDE.findall("".join(texts)):
        texts += [_text(Path(path)) for path in sorted(glob.glob(pattern))]  # noqa: PTH207
    line = LINE.search("\n".join(texts))
    return (line[1] or "") if line else None


def _text(path: Path) -> str:
    try:
        return read_text(path, 1 << 20)
    except (OSError, InputError):
        return ""


def look_at_pyxis(runner: Runner, site: Site, where: str, nodes: list[str]) -> Iterator[Finding]:
    """Whether Pyxis mounts images. Where it does not, and srun's words for NODES are given: what a step takes there."""
    options = read_options(runner)
    if options is None:
        yield fine("pyxis", where, "srun knows --container-image (its plugstack.conf cannot be read from here)")
    elif MOUNTS.search(options):
        yield fine("pyxis", where, "srun knows --container-image, and mounts images (use_squashfuse=1)")
    else:
        yield fine("pyxis", where, "srun knows --container-image")
        measured = _measure(runner, site, nodes) if nodes else ""
        yield wrong("pyxis.unpacks", where, f"Pyxis unpacks images: use_squashfuse=1 is not set{measured}")


def _measure(runner: Runner, site: Site, nodes: list[str]) -> str:
    """The smallest image of the store by a step that unpacks it, and one that mounts it; empty where there is none."""
    images = sorted(Store(site.store).images(), key=lambda one: one.size)
    if not images:
        return ""
    image = str(images[0].image)
    srun = ["srun", *nodes, "--nodes=1", "--ntasks=1"]
    unpacks = _seconds(runner, [*srun, f"--container-image={image}", "true"])
    mounts = _seconds(runner, [*srun, "/bin/sh", "-c", MOUNT, "sh", image])
    if unpacks is None:
        return ""
    said = f"; a step with an image of {images[0].size / 1e9:.1f} GB took {unpacks:.1f} s here"
    return f"{said}, mounting the same {mounts:.1f} s" if mounts is not None else said


def _seconds(runner: Runner, argv: list[str]) -> float | None:
    began = time.monotonic()
    done = runner.output(argv, timeout=LIMIT_S)
    return None if done.status else time.monotonic() - began
