"""How Slurm's own messages begin in a step's standard error, and in a batch job's log.

slurmstepd's form depends on the version (src/common/log.c of Slurm):

- until 24.11: `slurmstepd-node1: error: *** STEP 7.0 ON node1 CANCELLED AT ...`, unless
  LogTimeFormat has `format_stderr`;
- from 25.05 on as in its log: `[2026-11-26T12:48:15.248] error: *** STEP ...`, where LogTimeFormat
  says what stands in the brackets; `omit` (after 26.05) leaves them out.

launchers/jobs/failure.awk reads the same forms.

Tested in tests/unit/launch/test_failure.py.
"""

from __future__ import annotations

# What may stand before `error: ` of slurmstepd, as a regular expression. Also before srun's, which
# passes on what it is told.
SPEAKER = r"(?:(?:slurmstepd|srun)[^ \n]{0,200}: |\[[^\]\n]{1,200}\] )?"
# How a message begins that a step or a job was ended, or was put back into the queue
ENDED = r"error: \*\*\* (?:STEP|JOB) "
