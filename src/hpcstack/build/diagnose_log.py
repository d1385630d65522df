"""Why a build failed, out of its log: the step, the command, the lines that count, and what to type
next.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.build.job import read_log
from hpcstack.site.logins import redact_logins

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Completed
    from hpcstack.lock.model import Lock
    from hpcstack.site.load import Site

HARDLY = 64 << 20  # bytes: a disk that has less is taken for full
MARK = re.compile(r"^== hpcstack (step|failed in step|command|status|lost) (.*)$")  # images/lib.sh
STEP_BEGUN = re.compile(r"^== hpcstack step (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class LoggedFailure:
    """What a log tells of a failure.

    `where` is ` in step NAME`, or empty; `how` the command and its status; `lines` are those that
    count; `hint` says what to type next.
    """

    where: str
    how: str
    lines: tuple[str, ...]
    hint: str

    def message(self, beginning: str) -> str:
        """Return the message of an error, which begins with BEGINNING."""
        head = f"{beginning}{self.where}{self.how}"
        return "\n".join([head, *(f"  < {line}" for line in self.lines)])


def explain_failure(
    failed: Completed, log: Path, kept: Path, lock: Lock, site: Site
) -> LoggedFailure:
    """Return the step and the command that failed, the last lines that count, and where the whole
    log is KEPT.
    """
    text = read_log(log)
    marks: dict[str, str] = {}
    for match in filter(None, map(MARK.match, text.splitlines())):
        marks.setdefault(
            match[1], match[2]
        )  # a script's own failure comes before that of the step which ran it

    if "failed in step" in marks:
        where = f" in step {marks['failed in step']}"
        how = f"\n  > {marks.get('command', '?')}  (exit {marks.get('status', '?')})"
    elif begun := STEP_BEGUN.findall(text):
        where = f" in step {begun[-1]}"
        how = f": it ended without a word  (exit {failed.status})"
    else:
        where = ""
        how = f"\n  > {failed.command()}  (exit {failed.status})"

    lines = [redact_logins(line, site) for line in failed.tail if not MARK.match(line)]
    lines += [f"{name} came with {by}" for name, by in _find_requirements(text).items()]

    advice = _advise_on_full_disk(log.parent)
    if not advice:
        advice = (
            _advise(text).replace("REGISTRY", lock.base.answered_by).replace("STACK", lock.stack)
        )
    return LoggedFailure(where, how, tuple(lines), f"{advice}the whole log is {kept}")


def _advise_on_full_disk(folder: Path) -> str:
    """What to do where FOLDER's disk has hardly anything left: few tools say that this was why they
    failed.
    """
    left = shutil.disk_usage(folder).free
    full = (
        f"{folder} has no space left ({left >> 20} MiB): make room, or set build.tmpdir in "
        f"site.yaml; "
    )
    return full if left < HARDLY else ""


def _find_requirements(log: str) -> dict[str, str]:
    """{what a step replaced of NVIDIA's: the requirement that asked for it}, as pip said it."""
    lost = re.findall(r"^== hpcstack lost pip ([A-Za-z0-9._-]+)==", log, re.MULTILINE)
    out = {}
    for name in lost[:20]:
        spelt = re.sub(r"[-_.]+", "[-_.]+", name)
        if match := re.search(
            rf"^Collecting {spelt}\b.*\(from (?P<by>.+)\)$", log, re.MULTILINE | re.IGNORECASE
        ):
            out[name] = match["by"]
    return out


def _advise(log: str) -> str:
    known = (
        (
            r"(?m:^== hpcstack lost )",
            "pin the requirement to a version that keeps the base's packages; ",
        ),
        (
            r"CERTIFICATE_VERIFY_FAILED|certificate verify failed",
            "name your proxy's CA as build.ca_bundle in site.yaml; ",
        ),
        (r"unauthorized|authentication required|denied: ", "log in: docker login REGISTRY; "),
        (
            r"Version '[^']*' for '[^']*' was not found",
            "the archive no longer has what was locked: hpcstack lock STACK; ",
        ),
        (
            r"THESE PACKAGES DO NOT MATCH THE HASHES",
            "the index has other files than were locked: hpcstack lock STACK; ",
        ),
        (
            r"No matching distribution found for (torch|tensorflow|jax)==|No module named '(torch|tensorflow|jax)'|"
            r"(?s:\(constraint\) (torch|tensorflow|jax)==.*subprocess to install build dependencies)",
            "a source distribution is built against what the base brings, which no index has: name "
            "its project, and "
            "what of packages.pip asks for it, in packages.no_build_isolation; ",
        ),
        (
            r"ResolutionImpossible",
            "what is wanted does not go with what the base brings: loosen the requirement; ",
        ),
        (
            r"Held packages were changed|--allow-change-held-packages|you have held broken packages",
            "what is wanted needs another version of a package that the base holds, since NVIDIA "
            "chose it for its "
            "libraries: leave it out, or take a version that goes with what is held; ",
        ),
        (
            r"\buv: (command )?not found|No such file or directory: 'uv'|No module named uv\b",
            (
                "NVIDIA's images have uv from 26.02 to 26.05 alone: add it by packages.pip: [uv], "
                "or call pip; "
            ),
        ),
        (r"manifest unknown", "the registry no longer has what was locked: hpcstack lock STACK; "),
        (
            r"== hpcstack status 137|\bKilled\b",
            (
                "137 is a kill: if the step did not do it itself, the machine or the job has too "
                "little memory; "
            ),
        ),
        (r"create user namespace", "as root: sysctl -w user.max_user_namespaces=63556; "),
        (r"No space left on device", "make room, or set build.tmpdir in site.yaml; "),
        (r"No matching distribution found", "check the version with: pip index versions NAME; "),
        (r"E: Unable to locate package", "check the package's name for the base's distribution; "),
    )
    return next((advice for pattern, advice in known if re.search(pattern, log, re.IGNORECASE)), "")
