"""A line of syslog for each verb that changed something: who, what, how long, how it ended.

Tested in tests/unit/publish/test_usage.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcstack.core.syslog import tell_syslog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcstack.cli.session import Session

TAG = "hpcstack"
# verbs that change what others use, or that keep a machine busy
LOGGED = frozenset(
    [
        "adopt",
        "build",
        "bump",
        "bundle",
        "catalog",
        "default",
        "draft",
        "gc",
        "import",
        "lock",
        "promote",
        "publish",
        "pull",
        "push",
        "remove",
        "repair",
        "retire",
        "rollback",
        "sign",
        "sync",
        "test",
        "undo",
        "verify",
    ]
)
NAME = re.compile(r"[A-Za-z0-9][\w./+@-]{0,99}", re.ASCII)


def log_verb(session: Session, words: Sequence[str], status: int, seconds: float) -> None:
    """Tell syslog that the verb in WORDS ended with STATUS after SECONDS, if the site wants it.

    Of the words only the verb, and the word that follows it unless that is an option, are told.
    """
    # a verb that never asked for the site has changed nothing
    is_loaded = "loaded" in vars(session)
    if not words or words[0] not in LOGGED or not is_loaded or not session.site.usage.verbs:
        return
    from hpcstack.core.people import name_caller

    # An option's value may be anything, also a reason: so it is the first word alone, if any.
    rest = words[2:] if words[0] == "bundle" else words[1:]
    about = rest[0] if rest and NAME.fullmatch(rest[0]) else "-"
    tell_syslog(
        TAG,
        f"v1 verb={words[0]} what={about} who={name_caller()} seconds={seconds:.1f} "
        f"status={status}",
    )
