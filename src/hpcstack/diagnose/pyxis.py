"""How Pyxis starts an image here: mounted, or unpacked on each node before each step; and what that
costs.

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
from hpcstack.diagnose.advice import Finding, report_fine, report_wrong
from hpcstack.diagnose.mounting import LIMIT_S, NOW, smallest_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.core.process import Runner
    from hpcstack.diagnose.mounting import MountSpeeds
    from hpcstack.site.load import Site

CONFIG = re.compile(r"^PlugStackConfig\s*=\s*(/\S+)", re.MULTILINE)
LINE = re.compile(r"^\s*(?:required|optional)\s+\S*spank_pyxis\.so(?:\s+(.*))?$", re.MULTILINE)
INCLUDE = re.compile(r"^\s*include\s+(/\S+)", re.MULTILINE)
MOUNTS = re.compile(r"(?:^|\s)use_squashfuse=(?:1|true|yes)(?:\s|$)")


def parse_pyxis_options(runner: Runner) -> str | None:
    """What stands behind spank_pyxis.so in plugstack.conf; None where that cannot be known from
    here.
    """
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


def look_at_pyxis(
    runner: Runner, site: Site, where: str, nodes: list[str], measured: MountSpeeds | None
) -> Iterator[Finding]:
    """Whether Pyxis mounts images. Where it does not, and srun's words for NODES are given: what a
    step takes there, beside what mounting was MEASURED to take.
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
        cost = _cost(runner, site, nodes, measured) if nodes else ""
        yield report_wrong(
            "pyxis.unpacks", where, f"Pyxis unpacks images: use_squashfuse=1 is not set{cost}"
        )


def _cost(runner: Runner, site: Site, nodes: list[str], measured: MountSpeeds | None) -> str:
    """What a step takes that unpacks the smallest image of the store, and mounting it; empty where
    there is none.
    """
    image = smallest_image(site)
    if not image or "--jobid" in nodes:  # beside a job it would disturb that
        return ""
    words = [word for word in nodes if not word.startswith("--time=")]
    began = time.monotonic()
    done = runner.output(
        ["srun", *words, *NOW, "--nodes=1", "--ntasks=1", f"--container-image={image[0]}", "true"],
        timeout=LIMIT_S,
    )
    if done.status:
        return ""
    said = (
        f"; a step with an image of {image[1] / 1e9:.1f} GB took {time.monotonic() - began:.1f} s "
        f"here"
    )
    if not measured or not measured.programs:
        return said
    return f"{said}, mounting the same {min(one.seconds for one in measured.programs):.2f} s"
