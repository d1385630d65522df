"""What verbs share that take several names, or patterns of names.

Such a verb does one thing after another. A failure does not stop the rest.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import tree_of
from hpcstack.cli.session import Session, answer, choose_stacks, is_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcstack.core.errors import HpcstackError
    from hpcstack.releases.ledger import Ledger

    Counts = Callable[[Ledger, str], bool]


def choose_built_stacks(session: Session, names: Sequence[str]) -> list[str]:
    """Return the stacks that NAMES mean, each once.

    Of a pattern only the stacks that have an image count. A stack that is named exactly counts
    always: what is done with it says what is missing. Raise InputError where nothing is left.
    """
    from hpcstack.core.errors import InputError

    out: list[str] = []
    for name in names:
        for stack in choose_stacks(session, [name]):
            if is_pattern(name) and not session.store.newest(stack):
                continue
            if stack not in out:
                out.append(stack)

    if not out:
        raise InputError(
            f"nothing is built of {', '.join(names)}", f"hpcstack build {' '.join(names)}"
        )
    return out


def choose_published_versions(
    session: Session, names: Sequence[str], counts: Counts, nothing: str
) -> list[str]:
    """Return what is published that NAMES mean, each once, the oldest version first.

    A pattern is compared with NAME/VERSION and with NAME-VERSION. Of what it matches, the versions
    count for which COUNTS(ledger, version) is true. Other names are returned as they are. Raise
    InputError where a pattern means nothing; NOTHING says why, as in "waits for promotion".
    """
    from hpcstack.core.errors import InputError

    out: list[str] = []
    for name in names:
        found = _find_matching(session, name, counts) if is_pattern(name) else [name]
        if not found:
            raise InputError(f"nothing that matches {name!r} {nothing}", "hpcstack status")
        out += found
    return list(dict.fromkeys(out))


def can_be_loaded(ledger: Ledger, version: str) -> bool:
    """Return whether VERSION means a release now."""
    return version in ledger.aliases


def _find_matching(session: Session, pattern: str, counts: Counts) -> list[str]:
    """Return NAME/VERSION of each version that matches PATTERN and COUNTS."""
    from hpcstack.releases.ledger import make_version_key

    tree = tree_of(session)
    out = []
    for ledger in map(tree.ledger, tree.names()):
        versions = {entry.version for entry in ledger.entries}
        for version in sorted(versions, key=make_version_key):
            if _matches(pattern, ledger.name, version) and counts(ledger, version):
                out.append(f"{ledger.name}/{version}")
    return out


def _matches(pattern: str, name: str, version: str) -> bool:
    return any(fnmatch.fnmatchcase(f"{name}{mark}{version}", pattern) for mark in "/-")


def answer_each(
    kind: str, names: Sequence[str], act: Callable[[str], dict[str, Any]], *, as_json: bool
) -> None:
    """Do ACT for one of NAMES after another, and show how each ended.

    KIND is the key of the name in JSON: "stack" or "release". ACT returns the name's row, whose
    "said" is its line of text. A failure does not stop the rest. Then the exit code is the first
    failure's.
    """
    from hpcstack.core.errors import HpcstackError

    rows: list[dict[str, Any]] = []
    failed = 0
    try:
        for name in names:
            try:
                row = act(name)
            except HpcstackError as error:
                failed = failed or error.exit_code
                row = describe_failure(error)
            rows.append({kind: name, "status": 0, **row})
    finally:  # also where somebody interrupts it: what is done is done
        answer(rows, as_json, lambda: "\n".join(f"{row[kind]}: {row['said']}" for row in rows))
    if failed:
        raise click.exceptions.Exit(failed)


def describe_failure(error: HpcstackError) -> dict[str, Any]:
    """Return the row of something that ended with ERROR."""
    hint = f" ({error.hint})" if error.hint else ""
    return {"said": error.message + hint, "status": error.exit_code}
