"""What a sync has found and done, as data, and as the lines of a terminal.

Tested in tests/unit/sync/test_page.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.errors import HpcstackError
    from hpcstack.sync.plan import NamePlan, Status, SyncStep, VersionPlan


@dataclass(frozen=True)
class Deed:
    """A step that was carried out, or that failed, and what came of it."""

    step: SyncStep
    said: str
    hint: str = ""
    exit_code: int = 0  # of a failure


@dataclass
class NameResult:
    """How it is with one name: what is left to be done, and what was."""

    name: str
    file: Path  # that declares it
    plan: NamePlan
    deeds: list[Deed] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)  # {version: why its test waits}

    @property
    def failures(self) -> list[Deed]:
        return [one for one in self.deeds if one.exit_code]

    def find_failure(self, version: str) -> Deed | None:
        """Return what has failed of VERSION, or of the name itself where it is empty."""
        return next((one for one in self.failures if one.step.version == version), None)

    def status_of(self, version: VersionPlan) -> tuple[Status, str]:
        """Return how it is with VERSION, and why."""
        failure = self.find_failure(version.version)
        if failure:
            return "failed", f"{failure.step.verb}: {failure.said}"
        if version.version in self.waiting and version.status not in ("failed", "held"):
            return "waits", self.waiting[version.version]
        return version.status, version.note

    @property
    def status(self) -> Status:
        """How it is with the name as a whole."""
        return "failed" if self.failures else self.plan.status


@dataclass
class SyncResult:
    """What a sync has found and done."""

    site: str
    folder: Path
    made: str  # when, as 2027-01-31 06:00 UTC
    commit: str  # of the folder; empty where it is in no repository
    dry_run: bool
    names: list[NameResult] = field(default_factory=list)
    pruned: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # messages that could not be sent
    would_prune: list[str] = field(default_factory=list)
    undeclared: list[str] = field(default_factory=list)  # names that are published nevertheless
    prune_failure: Deed | None = None

    @property
    def exit_code(self) -> int:
        """0 where all is as declared, waits or is left to the next run; else the first failure's,
        or 1.
        """
        failures = [deed for one in self.names for deed in one.failures]
        if self.prune_failure:
            failures.append(self.prune_failure)
        if failures:
            return failures[0].exit_code
        wrong = [one for one in self.names if one.status in ("failed", "held")]
        return 1 if wrong or self.notes else 0

    @property
    def has_done_something(self) -> bool:
        """Whether a step was taken, or something was pruned."""
        return bool(self.pruned) or any(one.deeds for one in self.names)

    @property
    def differs(self) -> bool:
        """Whether there is a step to take, or something that is not as declared."""
        return self.exit_code != 0 or any(one.plan.steps for one in self.names)


# the words that people read for a status
WORDS: dict[Status, str] = {
    "done": "as declared",
    "todo": "to do",
    "waits": "waits",
    "held": "HELD",
    "failed": "FAILED",
}


@dataclass(frozen=True)
class SyncRow:
    """A line of the report: how it is with a release, or with a name, and why."""

    subject: str
    status: Status
    why: str
    failure: Deed | None = None  # the step that has failed, if one has

    @property
    def cells(self) -> tuple[str, str, str]:
        """The row in words."""
        return self.subject, WORDS[self.status], self.why


def list_sync_rows(result: SyncResult) -> list[SyncRow]:
    """Return a row for each version, for what is about a name, and for each failure beside them."""
    rows: list[SyncRow] = []
    for one in result.names:
        for version in one.plan.versions:
            status, why = one.status_of(version)
            failure = one.find_failure(version.version)
            rows.append(SyncRow(f"{one.name}/{version.version}", status, why, failure))
        rows += [SyncRow(one.name, status, why) for status, why in one.plan.notes]
        shown = {version.version for version in one.plan.versions}
        rows += [
            SyncRow(deed.step.subject, "failed", f"{deed.step.verb}: {deed.said}", deed)
            for deed in one.failures
            if deed.step.version not in shown
        ]
    return rows


def list_steps(result: SyncResult) -> list[str]:
    """Return the steps that are left, a line each, in their order."""
    return [str(step) for one in result.names for step in one.plan.steps] + result.would_prune


def list_deeds(result: SyncResult) -> list[str]:
    """Return what was done, a line each."""
    return [
        f"{name_step(deed.step)}: {deed.said}"
        for one in result.names
        for deed in one.deeds
        if not deed.exit_code
    ] + result.pruned


def list_wrong(result: SyncResult) -> list[str]:
    """Return what somebody must look at, a line each, with what to type next where that is known."""
    out = []
    for one in result.names:
        for deed in one.failures:
            hint = f" ({deed.hint})" if deed.hint else ""
            out.append(f"{name_step(deed.step)}: {deed.said}{hint}")

    rows = list_sync_rows(result)
    for status in ("held", "failed"):
        # A row that a failed step has made is told already.
        of_status = [row for row in rows if row.status == status and not row.failure]
        out += [f"{row.subject}: {row.why}" for row in of_status]
    if result.prune_failure:
        out.append(f"prune: {result.prune_failure.said}")
    return out + result.notes


def name_step(step: SyncStep) -> str:
    """Return STEP without why it is taken."""
    where = f" on {step.partition or 'the default partition'}" if step.verb == "test" else ""
    return f"{step.verb} {step.subject}{where}"


def summarise_result(result: SyncResult) -> str:
    """Return in a sentence how it is with all that is declared."""
    statuses = Counter(row.status for row in list_sync_rows(result))
    order: tuple[Status, ...] = ("failed", "held", "todo", "waits", "done")
    found = [(statuses[one], WORDS[one]) for one in order if statuses[one]]
    counts = ", ".join(f"{count} {word}" for count, word in found)
    return counts or "nothing is declared"


def make_document(result: SyncResult) -> dict[str, Any]:
    """Return RESULT as the document of `--json`."""
    return {
        "folder": str(result.folder),
        "commit": result.commit,
        "made": result.made,
        "dry_run": result.dry_run,
        "names": [_describe_name(one) for one in result.names],
        "pruned": result.pruned,
        "would_prune": result.would_prune,
        "notes": result.notes,
        "undeclared": result.undeclared,
    }


def _describe_name(one: NameResult) -> dict[str, Any]:
    versions = []
    for version in one.plan.versions:
        status, why = one.status_of(version)
        steps = [describe_step_as_data(step) for step in version.steps]
        versions.append({"version": version.version, "status": status, "why": why, "steps": steps})
    return {
        "name": one.name,
        "file": str(one.file),
        "status": one.status,
        "versions": versions,
        "repairs": [describe_step_as_data(step) for step in one.plan.repairs],
        "returns": [describe_step_as_data(step) for step in one.plan.returns],
        "changes": [describe_step_as_data(step) for step in one.plan.changes],
        "notes": [{"status": status, "why": why} for status, why in one.plan.notes],
        "done": [_describe_deed(deed) for deed in one.deeds if not deed.exit_code],
        "failed": [_describe_deed(deed) for deed in one.failures],
    }


def describe_step_as_data(step: SyncStep) -> dict[str, Any]:
    """Return STEP as a document."""
    out: dict[str, Any] = {"verb": step.verb, "subject": step.subject, "why": step.why}
    if step.verb == "test":
        out["partition"] = step.partition
    if step.dates:
        out["dates"] = {
            "warn": step.dates.deprecate,
            "refuse": step.dates.remove,
            "successor": step.dates.successor,
        }
    return out


def _describe_deed(deed: Deed) -> dict[str, Any]:
    out = {**describe_step_as_data(deed.step), "said": deed.said}
    if deed.exit_code:
        out |= {"hint": deed.hint, "exit_code": deed.exit_code}
    return out


def make_failure(step: SyncStep, error: HpcstackError) -> Deed:
    """Return that STEP has failed with ERROR."""
    said = error.message.splitlines()
    more = "; ".join(line.strip() for line in said[1:4])
    # 2 says that the declaration is wrong and nothing was done, which a step cannot know.
    code = 1 if error.exit_code == InputError.exit_code else error.exit_code
    return Deed(step, said[0] + (f" {more}" if more else ""), error.hint, code)
