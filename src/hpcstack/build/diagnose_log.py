"""Find in a build's log why it failed: the step, the command, the lines that count, the remedy."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.build.job import MAX_LOG, read_log
from hpcstack.site.logins import redact_logins

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Completed
    from hpcstack.lock.model import Lock
    from hpcstack.site.load import Site

HARDLY = 64 << 20  # bytes: a disk with less free space counts as full
# What images/lib.sh writes into the log.
MARK = re.compile(r"^== hpcstack (step|failed in step|command|status|lost) (.*)$")
STEP_BEGUN = re.compile(r"^== hpcstack step (.*)$", re.MULTILINE)
# Lines that end a step. A compiler names a place, and what follows is a consequence: the first such
# line counts. Of the others, the last does.
OF_COMPILER = re.compile(
    r"^\S+:\d+(?::\d+)?: (?:fatal )?error: "  # GCC, Clang
    r"|^\S+\(\d+\): error: "  # nvcc
    r"|: undefined reference to "
    r"|^\S*ld: (?:error|cannot find)"
    r"|^CMake Error at \S+:\d+"
)
ENDS_STEP = re.compile(
    r"^(?:E|ERROR|Error|error|fatal|FATAL|FAILED|CRITICAL): "
    r"|^(?:\S*/)?\S+: (?:line \d+: )?.*: (?:command )?not found$"
    r"|: No such file or directory$|: Permission denied$|: No space left on device$"
    r"|^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)(?:: |$)"
    r"|(?:^|: )Killed$|Segmentation fault"
)
OF_PIP = re.compile(r"^\s*(?:×|╰─>|│|note:|hint:)")  # pip's drawing around what another has said
LONGEST = 300  # characters of a line in a message


@dataclass(frozen=True)
class LoggedFailure:
    """What a log says of a failure.

    `where` is ` in step NAME`, or empty. `how` is the command with its status. `lines` are the last
    lines that count, `hint` says what to type next, and `page` is the how-to page about it, if any.
    """

    where: str
    how: str
    lines: tuple[str, ...]
    hint: str
    page: str = ""

    def message(self, beginning: str) -> str:
        """Return the message of an error, beginning with BEGINNING."""
        head = f"{beginning}{self.where}{self.how}"
        return "\n".join([head, *(f"  < {line}" for line in self.lines)])


def explain_failure(
    failed: Completed, log: Path, kept: Path, lock: Lock, site: Site
) -> LoggedFailure:
    """Explain why FAILED, a program of a build whose output is LOG, has failed.

    KEPT is where the user finds the whole log.
    """
    text = read_log(log)

    # The first mark of a kind counts: a script that fails writes its own before its step does.
    marks: dict[str, str] = {}
    for line in text.splitlines():
        match = MARK.match(line)
        if match:
            marks.setdefault(match[1], match[2])

    if "failed in step" in marks:
        where = f" in step {marks['failed in step']}"
        how = f"\n  > {marks.get('command', '?')}  (exit {marks.get('status', '?')})"
    elif begun := STEP_BEGUN.findall(text):
        where = f" in step {begun[-1]}"
        how = f": it ended without a message  (exit {failed.status})"
    else:
        where = ""
        how = f"\n  > {failed.command()}  (exit {failed.status})"

    lines = [redact_logins(line, site) for line in failed.tail if not MARK.match(line)]
    ended_by = find_ending_line(text)
    if ended_by:
        number, said = ended_by
        shown = redact_logins(said, site)
        lines = [line for line in lines if line.strip() != shown]
        # of a log that is too long to be read at once, lines in the middle are not counted
        is_whole = log.stat().st_size <= MAX_LOG
        place = f"line {number} of the log" if is_whole else "the log has"
        lines.insert(0, f"{place}: {shown[:LONGEST]}")
    lines += [f"{name} came with {by}" for name, by in _find_requirements(text).items()]

    # A full disk makes tools fail in many ways, so it is the first suspect.
    advice = _advise_on_full_disk(log.parent)
    page = "free-disk-space"
    if not advice:
        known = _find_known_failure(text)
        advice = known.advice.replace("REGISTRY", lock.base.answered_by)
        advice = advice.replace("STACK", lock.stack)
        page = known.page
    return LoggedFailure(where, how, tuple(lines), f"{advice}the whole log is {kept}", page)


def find_ending_line(log: str) -> tuple[int, str] | None:
    """Return (its number, the line) of the line in LOG that says why its last step has ended.

    None where no line of the step has a form that is known.
    """
    lines = log.splitlines()
    begun = [number for number, line in enumerate(lines, 1) if STEP_BEGUN.match(line)]
    first_of_step = begun[-1] + 1 if begun else 1
    last: tuple[int, str] | None = None
    for place, line in enumerate(lines[first_of_step - 1 :], first_of_step):
        text = line.strip()
        if MARK.match(line) or OF_PIP.match(line):
            continue
        if OF_COMPILER.search(text):
            return place, text
        if ENDS_STEP.search(text):
            last = place, text
    return last


def _advise_on_full_disk(folder: Path) -> str:
    """Return what to do if the disk of FOLDER is full; empty where it is not.

    Few tools say that a full disk made them fail.
    """
    left = shutil.disk_usage(folder).free
    if left >= HARDLY:
        return ""
    return (
        f"{folder} has no space left ({left >> 20} MiB): make room, or set build.tmpdir in "
        f"site.yaml; "
    )


def _find_requirements(log: str) -> dict[str, str]:
    """Return {package of the base that a step replaced: the requirement that asked for it}.

    Both are found in LOG: lib.sh marks the packages, and pip prints what asked for them.
    """
    lost = re.findall(r"^== hpcstack lost pip ([A-Za-z0-9._-]+)==", log, re.MULTILINE)
    out = {}
    for name in lost[:20]:
        # Spelt as PEP 503 has it: runs of `-`, `_` and `.` are one and the same sign in a name.
        spelt = re.sub(r"[-_.]+", "[-_.]+", name)
        collecting = rf"^Collecting {spelt}\b.*\(from (?P<by>.+)\)$"
        match = re.search(collecting, log, re.MULTILINE | re.IGNORECASE)
        if match:
            out[name] = match["by"]
    return out


@dataclass(frozen=True)
class _KnownFailure:
    """What a log has, what to do then, and the how-to page about it, if any.

    In `advice`, STACK and REGISTRY stand for the stack's name and its registry.
    """

    pattern: str
    advice: str
    page: str = ""


# The first that matches counts, so the particular ones precede the general ones.
KNOWN_FAILURES = (
    _KnownFailure(
        r"(?m:^== hpcstack lost )",
        "pin the requirement to a version that keeps the base's packages; ",
        page="write-a-recipe",
    ),
    _KnownFailure(
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed",
        "name your proxy's CA as build.ca_bundle in site.yaml; ",
        page="mirror-a-registry",
    ),
    _KnownFailure(
        r"unauthorized|authentication required|denied: ",
        "log in: docker login REGISTRY; ",
        page="mirror-a-registry",
    ),
    _KnownFailure(
        r"Version '[^']*' for '[^']*' was not found",
        "the archive no longer has what was locked: hpcstack lock STACK; ",
        page="new-ngc-month",
    ),
    _KnownFailure(
        r"THESE PACKAGES DO NOT MATCH THE HASHES",
        "the index has other files than were locked: hpcstack lock STACK; ",
        page="new-ngc-month",
    ),
    _KnownFailure(
        r"No matching distribution found for (torch|tensorflow|jax)=="
        r"|No module named '(torch|tensorflow|jax)'"
        r"|(?s:\(constraint\) (torch|tensorflow|jax)==.*"
        r"subprocess to install build dependencies)",
        "a source distribution is built against what the base brings, which no index has: name "
        "its project, and what of packages.pip asks for it, in packages.no_build_isolation; ",
        page="write-a-recipe",
    ),
    _KnownFailure(
        r"ResolutionImpossible",
        "the requirement conflicts with a package that the base brings: loosen the requirement; ",
    ),
    _KnownFailure(
        r"Held packages were changed|--allow-change-held-packages"
        r"|you have held broken packages",
        "a package needs another version of one that the base holds, because NVIDIA chose it for "
        "its libraries: leave it out, or take a version that works with what is held; ",
    ),
    _KnownFailure(
        r"\buv: (command )?not found|No such file or directory: 'uv'|No module named uv\b",
        "only NVIDIA's images from 26.02 to 26.05 have uv: add it by packages.pip: [uv], or call "
        "pip; ",
    ),
    _KnownFailure(
        r"manifest unknown",
        "the registry no longer has what was locked: hpcstack lock STACK; ",
    ),
    _KnownFailure(
        r"== hpcstack status 137|\bKilled\b",
        "exit status 137 means killed: unless the step did it itself, the machine or the job has "
        "too little memory; ",
        page="why-was-my-job-killed",
    ),
    _KnownFailure(
        r"create user namespace",
        "as root: sysctl -w user.max_user_namespaces=63556; ",
        page="allow-user-namespaces",
    ),
    _KnownFailure(
        r"No space left on device",
        "make room, or set build.tmpdir in site.yaml; ",
        page="free-disk-space",
    ),
    _KnownFailure(
        r"No matching distribution found",
        "check the version with: pip index versions NAME; ",
    ),
    _KnownFailure(
        r"E: Unable to locate package",
        "check the package's name for the base's distribution; ",
    ),
)


def _find_known_failure(log: str) -> _KnownFailure:
    """Return the first known failure in LOG; an empty one where none is known."""
    for known in KNOWN_FAILURES:
        if re.search(known.pattern, log, re.IGNORECASE):
            return known
    return _KnownFailure("", "")
