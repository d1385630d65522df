"""What `scontrol show job` shows of a job, as fields. Pure.

Source: scontrol(1), and slurm_sprint_job_info in src/api/job_info.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.slurm.state import JobState, read_state

if TYPE_CHECKING:
    from collections.abc import Mapping

# A field of `scontrol --oneliner show job`. Some are named Socks/Node, or with a sign before them.
FIELD = re.compile(r"(?:^| )([A-Z][A-Za-z]+)=(\S*)")


@dataclass(frozen=True)
class JobRecord:
    """A job, a task of an array, several tasks that still wait, or a part of a hetjob.

    `name` is its number as people write it: 7, 7_3, 7_5-20%2, or 7+1. `fields` are those that Slurm
    shows, {name: value}; what it shows as `(null)` is left out.
    """

    name: str
    fields: Mapping[str, str]

    @property
    def state(self) -> JobState:
        word = self.fields.get("JobState", "")
        exit_code = self.fields.get("ExitCode", "") if word == "FAILED" else ""
        return read_state(word, exit_code)


def read_job_records(text: str) -> list[JobRecord]:
    """Return the records in TEXT, of `scontrol --oneliner show job`."""
    found = map(parse_job_record, _split_records(text))
    return [record for record in found if record]


def _split_records(text: str) -> list[str]:
    """Return the records in TEXT, a line each.

    Slurm 25.11 and newer print the command line of sbatch as it was, with its newlines.
    """
    records: list[str] = []
    for line in text.splitlines():
        if line.startswith("JobId=") or not records:
            records.append(line)
        else:
            records[-1] += f" {line}"
    return records


def parse_job_record(line: str) -> JobRecord | None:
    """Return the record that LINE is; None where it is none.

    Of each name the first counts: what a user wrote, such as a comment, comes later and may hold
    NAME=VALUE, too.
    """
    fields = dict(reversed(FIELD.findall(line)))
    known = {name: value for name, value in fields.items() if value not in ("", "(null)")}
    number = known.get("JobId")
    if not number:
        return None
    if "ArrayTaskId" in known:
        number = f"{known.get('ArrayJobId', number)}_{known['ArrayTaskId']}"
    if "HetJobOffset" in known:
        number = f"{known.get('HetJobId', number)}+{known['HetJobOffset']}"
    return JobRecord(number, known)
