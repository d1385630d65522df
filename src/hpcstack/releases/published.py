"""What a text means among what is published: a name, a version of it, or a release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from hpcstack.releases.ledger import Entry, Ledger
    from hpcstack.releases.tree import Tree


@dataclass(frozen=True)
class PublishedName:
    """What a text means in the module tree: a NAME's ledger, and the rest of the text."""

    ledger: Ledger
    rest: str = ""  # what follows NAME- or NAME/; empty for a name alone

    @property
    def entry(self) -> Entry | None:
        """The release that is named; None where the rest names none."""
        return next((one for one in self.ledger.entries if one.release == self.rest), None)

    @property
    def release(self) -> str:
        """The release that is named, as in `24.11-r2`; empty where the rest names none."""
        return self.rest if self.entry else ""

    @property
    def version(self) -> str:
        """The version that is named, or that the named release is of; empty for any other rest."""
        if self.entry:
            return self.entry.version
        is_version = any(one.version == self.rest for one in self.ledger.entries)
        return self.rest if is_version else ""

    @property
    def is_known(self) -> bool:
        """Whether there is what is named: a name, a version or a release."""
        return not self.rest or bool(self.version)

    @property
    def default_version(self) -> str:
        """The version of the default; without one, that of the newest release."""
        newest = self.ledger.entries[-1].release if self.ledger.entries else ""
        release = self.ledger.default or newest
        return self.ledger.entry(release).version if release else ""


def read_published(text: str, tree: Tree) -> PublishedName | None:
    """Return what TEXT means in TREE; None where no published name begins it.

    `pytorch-lightning` is not a version of `pytorch` where both are published: of several names
    that begin TEXT, the longest of which there is such a version or release is meant. Where there
    is none of any, the longest.
    """
    longest_first = sorted(tree.names(), key=len, reverse=True)
    readings = []
    for name in longest_first:
        if text == name:
            readings.append(PublishedName(tree.ledger(name)))
        elif text.startswith((f"{name}-", f"{name}/")):
            readings.append(PublishedName(tree.ledger(name), text[len(name) + 1 :]))
    known = [one for one in readings if one.is_known]
    return next(iter([*known, *readings]), None)


def find_version(text: str, tree: Tree) -> tuple[Ledger, str, str]:
    """Return (ledger, version, release) of what TEXT means in TREE.

    The version of a name alone is that of its default. The release is empty unless it was named.
    InputError where nothing of that name is published.
    """
    found = read_published(text, tree)
    if found is None:
        raise refuse_unpublished(text, tree)
    if not found.rest:
        return found.ledger, found.default_version, ""
    if found.is_known:
        return found.ledger, found.version, found.release
    raise _refuse_unknown(found)


def require_version(verb: str, text: str, tree: Tree) -> tuple[Ledger, str, str]:
    """Do as `find_version`, but refuse a name without a version: VERB must not guess it."""
    ledger, version, release = find_version(text, tree)
    if ledger.name == text:
        versions = ", ".join(dict.fromkeys(one.version for one in ledger.entries))
        raise InputError(
            f"{verb} wants a version; {text} has {versions}", f"hpcstack {verb} {text}/{version}"
        )
    return ledger, version, release


def refuse_unpublished(text: str, tree: Tree) -> InputError:
    """Return the refusal of TEXT, which no name begins that is published in TREE."""
    return InputError(
        f"nothing is published as {text!r}{did_you_mean(text, tree.names())}", "hpcstack status"
    )


def _refuse_unknown(found: PublishedName) -> InputError:
    """Return the refusal of a version or a release of a published name that there is not."""
    ledger, rest = found.ledger, found.rest
    versions = dict.fromkeys(entry.version for entry in ledger.entries)
    # A release that does not exist: of its version, the others are of use to know.
    of_version = [one.release for one in ledger.entries if one.version == rest.rpartition("-r")[0]]
    known = ", ".join(of_version or versions)
    return InputError(
        f"{ledger.name}/{rest} is not published (there are: {known})",
        f"hpcstack status {ledger.name}",
    )
