"""The doctor on Pyxis: does it mount images, or unpack them on each node before each step?

It mounts them with use_squashfuse=1, which Pyxis has from 0.22 on:
https://github.com/NVIDIA/pyxis/wiki/Setup.
"""

from __future__ import annotations

import glob
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.core.files import read_text
from hpcstack.diagnose.advice import Finding, report_fine, report_wrong
from hpcstack.diagnose.mounting import LIMIT_S, NOW, find_smallest_image
from hpcstack.slurm.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.core.process import Runner
    from hpcstack.diagnose.mounting import MountSpeeds
    from hpcstack.site.load import Site

LINE = re.compile(r"^\s*(?:required|optional)\s+\S*spank_pyxis\.so(?:\s+(.*))?$", re.MULTILINE)
INCLUDE = re.compile(r"^\s*include\s+(/\S+)", re.MULTILINE)
MOUNTS = re.compile(r"(?:^|\s)use_squashfuse=(?:1|true|yes)(?:\s|$)")


def parse_pyxis_options(runner: Runner) -> str | None:
    """Return the options of spank_pyxis.so in plugstack.conf, or in files that it includes.

    None where they cannot be known from here.
    """
    plugstack = Client(runner).read_config().get("PlugStackConfig", "")
    texts = [_read_if_possible(Path(plugstack))] if plugstack.startswith("/") else []
    for pattern in INCLUDE.findall("".join(texts)):
        paths = sorted(glob.glob(pattern))  # noqa: PTH207
        texts += [_read_if_possible(Path(path)) for path in paths]
    line = LINE.search("\n".join(texts))
    if not line:
        return None
    return line[1] or ""


def _read_if_possible(path: Path) -> str:
    """Return the text of the file PATH; empty where it cannot be read."""
    try:
        return read_text(path, 1 << 20)
    except (OSError, InputError):
        return ""


def look_at_pyxis(
    runner: Runner, site: Site, where: str, nodes: list[str], measured: MountSpeeds | None
) -> Iterator[Finding]:
    """Check whether Pyxis mounts images.

    Where it does not, the finding says what a step takes on one of the nodes that srun's words
    NODES name, beside what mounting was MEASURED to take. Without NODES nothing is started.
    """
    options = parse_pyxis_options(runner)
    if options is None:
        yield report_fine(
            "pyxis",
            where,
            "srun knows --container-image (its plugstack.conf cannot be read from here)",
        )
    elif MOUNTS.search(options):
        yield report_fine(
            "pyxis", where, "srun knows --container-image, and mounts images (use_squashfuse=1)"
        )
    else:
        yield report_fine("pyxis", where, "srun knows --container-image")
        cost = _measure_cost(runner, site, nodes, measured) if nodes else ""
        yield report_wrong(
            "pyxis.unpacks", where, f"Pyxis unpacks images: use_squashfuse=1 is not set{cost}"
        )


def _measure_cost(
    runner: Runner, site: Site, nodes: list[str], measured: MountSpeeds | None
) -> str:
    """Start a step that unpacks the smallest image of the store. Return what it took, in words.

    Empty where there is no image, the step fails, or NODES are those of a job, which the step
    would disturb.
    """
    smallest = find_smallest_image(site)
    if not smallest or "--jobid" in nodes:
        return ""
    image, size = smallest
    words = [word for word in nodes if not word.startswith("--time=")]
    options = [*words, *NOW, "--nodes=1", "--ntasks=1", f"--container-image={image}"]
    began = time.monotonic()
    done = Client(runner).run_step(options, ["true"], LIMIT_S)
    took = time.monotonic() - began
    if done.status:
        return ""

    said = f"; a step with an image of {size / 1e9:.1f} GB took {took:.1f} s here"
    if not measured or not measured.programs:
        return said
    fastest = min(one.seconds for one in measured.programs)
    return f"{said}, mounting the same {fastest:.2f} s"
