"""Verbs typed as root on a site that names its publishers, and what they open of what others may
write: in their own process (an audit hook, support/audited), and in the programs that they start
(strace).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HPCSTACK = Path(sys.executable).with_name("hpcstack")
AUDITED = Path(__file__).resolve().parent / "audited"

# What is read without asking the gate, and why that does no harm: {function: why}
UNJUDGED = {
    "publish/damage.py:_describe_difference": "compared with the digest in the inventory, which is "
    "a publisher's; anything else is damage",
    "store/signing.py:verify_signature": "a signature is believed for its key, whoever put it there",
    "publish/gc.py:_read_about": "shown beside the image's key; it decides nothing",
}
# The same, of those that make images.
UNJUDGED_BY_BUILDS = {
    "core/replacing.py:sync": "this very act has just written it, in a folder of its own",
    "core/process.py:finish": "what the packer said, in the same folder",
    "squashfs/splice.py:_write": "the image that is being written, in a folder of the build's own",
    "build/bundle_apply.py:_extract_files": "just unpacked, in a folder of this act's own; compared "
    "with the manifest's digest",
    "publish/push_image.py:_make_file": "a file without a name, for what is sent",
    "publish/push_image.py:_read_lock": "compared with the digest in the image's record, which is a "
    "publisher's",
    "publish/attachments.py:collect_attachments": "the same",
}


@dataclass
class AuditedSite:
    """A site on disk: FILE is its site.yaml, SHARED the folders that its group may write.

    Verbs are typed in words, in which a word of `stands_for` stands for a path.
    """

    top: Path
    file: Path
    shared: list[Path]
    stands_for: dict[str, Path]
    variables: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def type(self, words: str) -> tuple[int, list[dict[str, Any]]]:
        """Type WORDS; return the exit status, and what was opened."""
        seen = self.top / "seen"
        seen.unlink(missing_ok=True)
        status = self.run(
            words,
            PYTHONPATH=str(AUDITED),
            HPCSTACK_AUDIT_BELOW=":".join(map(str, self.shared)),
            HPCSTACK_AUDIT_TO=str(seen),
        )
        lines = seen.read_text().splitlines() if seen.exists() else []
        return status, [json.loads(line) for line in lines]

    def run(self, words: str, *before: str, **variables: str) -> int:
        """Type WORDS after the command BEFORE, with VARIABLES; return the exit status."""
        given = [str(self.stands_for.get(word, word)) for word in words.split()]
        own = {"HOME": str(self.top), "HPCSTACK_SITE": str(self.file)}
        done = subprocess.run(
            [*before, str(HPCSTACK), *given],
            env={**os.environ, **own, **self.variables, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        self.said.append(done.stdout + done.stderr)
        return done.returncode

    def trace(self, words: str) -> set[tuple[str, str]]:
        """Type WORDS; return (program, path) of what others than hpcstack opened."""
        log = self.top / "trace"
        traced = ("strace", "-f", "-y", "-qq", "-e", "trace=execve,open,openat,openat2")
        status = self.run(words, *traced, "-o", str(log))
        assert status == 0, self.said[-1]

        below = tuple(f"{one}/" for one in self.shared)
        programs: dict[str, str] = {}  # by process
        found = set()
        for line in log.read_text(errors="replace").splitlines():
            process, _, call = line.partition(" ")
            begun = re.match(r'\s*execve\("([^"]+)".* = 0$', call)
            if begun:
                programs[process] = Path(begun[1]).name
            opened = re.search(r" = \d+<([^>]+)>$", call)
            if not opened or "O_DIRECTORY" in call or not opened[1].startswith(below):
                continue
            if programs.get(process, HPCSTACK.name) != HPCSTACK.name:
                found.add((programs[process], opened[1]))
        return found


def find_unjudged(opened: list[dict[str, Any]], known: dict[str, str]) -> list[str]:
    """What of OPENED the gate was not asked about, and none of the functions KNOWN has opened."""
    return [
        f"{one['path']} by {one['by']}"
        for one in opened
        if not one["judged"] and not known.keys() & set(one["by"])
    ]
