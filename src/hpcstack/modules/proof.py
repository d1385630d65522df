"""Which reports there are of an image, and whether they open the gate to production."""

from __future__ import annotations

import json
from pathlib import Path

from hpcstack.errors import AnswerIsNo, InputError
from hpcstack.launch.record import state_folder
from hpcstack.modules.gate import shut
from hpcstack.report import Report
from hpcstack.site import Site
from hpcstack.spec.model import Stack
from hpcstack.store import Artifact


def read(path: Path) -> Report:
    """The report in the file PATH, or in the folder of a run. InputError where there is none."""
    file = path / "report.json" if path.is_dir() else path
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        document.pop("verdict", None)
        return Report.model_validate(document)
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{file} is no report: {error}", "hpcstack test STACK writes one") from None


def reports(stack: str, sha256: str) -> list[Report]:
    """This user's reports of the image of SHA256, the newest first."""
    found = []
    for path in (state_folder() / "tests" / stack).glob("*/report.json"):
        try:
            found.append(read(path))
        except InputError:
            continue
    return sorted((one for one in found if one.image_sha256 == sha256), key=lambda one: one.started, reverse=True)


def proven(stack: Stack, artifact: Artifact, site: Site, given: list[Report], override: str) -> Report | None:
    """The report that a production release may show, of those GIVEN. AnswerIsNo says why the gate is shut.

    With OVERRIDE the gate is passed; the newest report, if there is any, is shown all the same.
    """
    opened: Report | None = None
    reasons: list[str] = []
    for kind in site.modules.prove_on or ("",):
        fitting = [one for one in given if not kind or one.node_type == kind]
        verdicts = [(one, _shut(stack, artifact, site, one)) for one in fitting]
        good = next((one for one, why in verdicts if not why), None)
        opened = opened or good
        if good is None:
            why = verdicts[0][1] if verdicts else ["there is no report of this image"]
            reasons += [f"{kind}: {reason}" if kind else reason for reason in why]
    if not reasons or override:
        return opened or (given[0] if given else None)
    shown = "".join(f"\n  {reason}" for reason in reasons[:20])
    more = f"\n  and {len(reasons) - 20} more" if len(reasons) > 20 else ""
    raise AnswerIsNo(
        f"the gate to production is shut for {stack.full_name}:{shown}{more}",
        f"hpcstack test {stack.full_name} -N 2 --tier {site.modules.tier}; or --override REASON, which is written down",
    )


def _shut(stack: Stack, artifact: Artifact, site: Site, report: Report) -> list[str]:
    node = site.node_types.get(report.node_type)
    return shut(stack.tests, site.modules.tier, node, report, artifact.sha256, artifact.suite)
