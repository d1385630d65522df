"""What the standard error of a step says of its end: the first rank that failed, where, of what.
Pure.

Ranks say in one line what they ended with (launchers/in-image/rank.sh), torch puts `[rankN]: `
before their tracebacks, and srun says which task ended first. launchers/jobs/failure.awk does the
same for job scripts; a test holds the two together.
"""

from __future__ import annotations

import enum
import re
import signal
from dataclasses import dataclass, field

RANK = re.compile(r"hpcstack: rank (\d+) on (\S+) ended with (\d+) \[(\d+) (\d+(?:\.\d+)?)\.?N?\]")
TASK = re.compile(r"srun: error: (\S+): tasks? (\d+)[\d,-]*: Exited with exit code (\d+)")
CANCELLED = re.compile(r"(?:slurmstepd|srun)[^ ]*: .* CANCELLED AT (.*)")
BEGIN = (
    "hpcstack: rank ",
    "hpcstack: nothing was",
    "srun: error: ",
    "slurmstepd",
    "Traceback (most recent call last):",
)  # also after a bar
HANGS = re.compile(r"hpcstack: nothing was written for (\d+) s: ")  # launch --watchdog
OF_RANK = re.compile(r"\[rank(\d+)\]: ?")
LABEL = re.compile(r" *\d+: ")
# Why a program could not start: what python, env, setpriv and shells say on their way out with 1,
# 2, 126 or 127
STARTS = re.compile(
    r"\S*python[0-9.]*: (can't open file|No module named|Error while finding module specification) ?.*"
    r"|(env|setsid|setpriv|\S*sh): .*(Permission denied|No such file or directory|not found|Exec format error)"
)
PYTHON_STARTS = re.compile(
    r"\S*python[0-9.]*: (No module named|Error while finding module specification)"
)
NOT_STARTED = (2, 126, 127)
PYTHON_NOT_STARTED = 1
# What argparse, click and others say of wrong options, on their way out with 2
WRONG_OPTION = re.compile(r"(\S+: )?[Ee]rror: .+")
WRONG_OPTIONS = 2
# Open MPI's and MPICH's words for MPI_Abort
MPI_ABORT = re.compile(r"MPI_ABORT was invoked on rank \d+ .*|Abort\(-?\d+\) on node \d+ .*")
# Slurm's word for a task that its memory limit killed
OOM_KILL = re.compile(r"(?:slurmstepd|srun)[^ ]*: error: Detected \d+ oom[-_]kill events? in .*")
TERMINATED, KILLED = 143, 137  # statuses of what TERM and KILL have ended
OUT_OF_MEMORY = "killed by SIGKILL: the job's memory limit was reached"
# A line that nobody has failed of: a warning, an information, a progress bar, a rule
NO_REASON = re.compile(
    r"^\[?[WIED][0-9]{4}|WARN|Warning|INFO|DEBUG|NOTE|%\||it/s|^(\*|hpcstack:|srun:|salloc:|slurmstepd)|^[-=*# ]*$"
)
PYXIS = re.compile(r"(?:slurmstepd|srun)[^ ]*: error: (?:spank: )?pyxis: +(.*)")
PYXIS_ECHOES = (
    "couldn't start container",
    "container start failed",
    "printing enroot log file",
    "if the image has",
)
FILE = re.compile(r'  File "([^"]+)", line (\d+)')
EXCEPTION = re.compile(
    r"[A-Za-z_][A-Za-z0-9_.]*(Error|Exception|Interrupt|Exit|Expired|Iteration)(:|$)"
)
ANY_EXCEPTION = re.compile(
    r"[A-Za-z_][A-Za-z0-9_.]*(: |$)"
)  # right below a traceback, whatever its name
LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3|^<")
TRACEBACK = "Traceback (most recent call last):"
INTERRUPT = "KeyboardInterrupt"
LOGGING = (
    "--- Logging error ---"  # a traceback that the logging module prints, and nothing fails of
)
OWN_FAILURE = 125


class EndedBy(enum.Enum):
    """What ended a step from outside, with the words for it."""

    CANCEL = "it was cancelled"
    TIME_LIMIT = "the time limit was reached"
    PREEMPTION = "it was preempted"
    NODE_FAILURE = "a node failed"
    WATCHDOG = "nothing was written"


# Where Slurm ends a step itself, the step's status is that of TERM, whatever the ranks made of it
BY_SLURM = (EndedBy.CANCEL, EndedBy.TIME_LIMIT, EndedBy.PREEMPTION)
# The statuses with which a task ends that Slurm has ended so
STATUSES = {
    EndedBy.CANCEL: (TERMINATED,),
    EndedBy.TIME_LIMIT: (TERMINATED, KILLED),
    EndedBy.PREEMPTION: (TERMINATED, KILLED),
}


@dataclass
class Failure:
    """Fed with lines, it knows how the step ended."""

    rank: str = ""
    host: str = ""
    ended: int = 0
    moment: tuple[int, float] = (-1, 0.0)  # how often it had been started anew, and the second
    line: str = ""  # the line that says so
    task: tuple[str, str, int] | None = None  # task, host, status
    ended_by: EndedBy | None = None
    silent_s: int = 0  # with EndedBy.WATCHDOG: for how long nothing had been written
    open: set[str] = field(default_factory=set)
    inside: set[str] = field(default_factory=set)  # whose last line was one of a traceback's body
    place: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    # what had been said, by nobody in particular, when the rank ended: what comes later is an echo
    said: str = ""
    wrong: dict[str, str] = field(default_factory=dict)  # what a program said of its options
    aborted: str = ""
    last: dict[str, str] = field(default_factory=dict)  # the last line that may be a reason
    last_words: str = ""  # that of the rank that failed first
    out_of_memory: bool = False
    harmless: set[str] = field(default_factory=set)
    starts: str = ""  # why a program could not start
    pyxis: str = ""

    def feed(self, line: str) -> None:
        """Read one LINE of the step's standard error, without its end."""
        rank, line = _split_rank(line)
        if found := RANK.fullmatch(line):
            self._read_end_of_rank(found)
        elif self._read_word_of_slurm(line):
            return
        elif not self.starts and not self.host and STARTS.fullmatch(line):
            self.starts = line[:300]
        elif not self.aborted and not self.host and MPI_ABORT.fullmatch(line):
            self.aborted = line[:300]
        else:
            self._read_traceback(rank, line)

    def _read_word_of_slurm(self, line: str) -> bool:
        """Read LINE where Slurm, Pyxis or the watchdog says it. Whether one of them does."""
        if found := TASK.fullmatch(line):
            if not self.task and not self.ended_by:  # what ends after it was told to is no failure
                self.task = found[2], found[1], int(found[3])
        elif found := CANCELLED.match(line):
            self.ended_by = _named_by_slurm(found[1]) or self.ended_by or EndedBy.CANCEL
        elif found := HANGS.match(line):
            self.silent_s = int(found[1])
            self.ended_by = self.ended_by or EndedBy.WATCHDOG
        elif line.startswith("srun: error: Node failure on "):
            self.ended_by = EndedBy.NODE_FAILURE
        elif found := PYXIS.match(line):
            if not self.pyxis and not found[1].startswith(PYXIS_ECHOES):
                self.pyxis = found[1][:300]
        elif OOM_KILL.fullmatch(line):
            self.out_of_memory = True
        else:
            return False
        return True

    def _read_end_of_rank(self, found: re.Match[str]) -> None:
        """Keep the rank that failed first: of the latest start, and there the earliest."""
        if self.ended_by:
            return  # it was told to end
        again, moment = int(found[4]), float(found[5])
        if (
            not self.host
            or again > self.moment[0]
            or (again == self.moment[0] and moment < self.moment[1])
        ):
            self.rank, self.host, self.ended, self.moment = (
                found[1],
                found[2],
                int(found[3]),
                (again, moment),
            )
            self.line = found[0]
            self.said = self.why.get("", "")
            if not self.said and self.ended == WRONG_OPTIONS:
                self.said = self.wrong.get(self.rank) or self.wrong.get("", "")
            self.last_words = self.last.get(self.rank) or self.last.get("", "")

    def _read_traceback(self, rank: str, line: str) -> None:
        """Read LINE of RANK, which may be of a traceback, or the last words before one."""
        if line == LOGGING:
            self.harmless.add(rank)
        elif line.startswith(TRACEBACK):
            self.open.add(rank)
            self.place.pop(rank, None)
            self.own.pop(rank, None)
        elif found := FILE.match(line):
            self.open.add(rank)
            self.place[rank] = f"{found[1]}, line {found[2]}"
            if not LIBRARY.search(found[1]):
                self.own[rank] = self.place[rank]
            self.inside.add(rank)
            return
        elif EXCEPTION.match(line) or (rank in self.inside and ANY_EXCEPTION.match(line)):
            harmless = rank in self.harmless or "ChildFailedError" in line
            # A rank that was interrupted may fail of something else as it ends.
            is_new = rank not in self.why or (
                self.why[rank].startswith(INTERRUPT) and not line.startswith(INTERRUPT)
            )
            if rank in self.open and is_new and not harmless:
                place = self.own.get(rank) or self.place.get(rank)
                self.why[rank] = line[:300] + (f" ({place})" if place else "")
            self.open.discard(rank)
            self.harmless.discard(rank)
        elif line.startswith(" ") and rank in self.inside:
            return  # a line of source, or the marks below it
        elif WRONG_OPTION.fullmatch(line):
            self.wrong[rank] = line[:300]
        elif not self.host and not NO_REASON.search(line):
            self.last[rank] = line[:300]
        self.inside.discard(rank)

    def end(self, status: int) -> tuple[int, str]:
        """(the status that counts, what happened in words) of a step that ended with STATUS."""
        counts, said = self._judge(status)
        return counts, said or ("it failed" if counts else "")

    def _judge(self, status: int) -> tuple[int, str]:
        """As `end`, without words where nothing is known."""
        if status == 0:
            return 0, ""
        if self.host:
            said = f"rank {self.rank} on {self.host} failed first"
            if reason := self._reason():
                return self.ended, f"{said}: {reason}"
            return self.ended, said + (
                f"; the last line before: {self.last_words}" if self.last_words else ""
            )
        said = self.why.get("", "") or self.aborted or self.pyxis
        if self.task and status != OWN_FAILURE and not self._slurm_ended_the_task():
            number, host, task_status = self.task
            reason = f": {said}" if said else ""
            return task_status, f"task {number} on {host} failed first{reason}"
        if self.aborted:
            return status, self.aborted  # Slurm cancels the step of it
        if self.ended_by:
            return (TERMINATED if self.ended_by in BY_SLURM else status), self._words_for_the_end()
        return status, said

    def _slurm_ended_the_task(self) -> bool:
        """Whether the first task to end has ended of what Slurm said later only."""
        if not self.task or not self.ended_by:
            return False
        return self.task[2] in STATUSES.get(self.ended_by, ())

    def _words_for_the_end(self) -> str:
        """How the step was ended from outside; empty where it was not."""
        if self.ended_by is EndedBy.WATCHDOG:
            return f"{self.ended_by.value} for {self.silent_s} s"
        return self.ended_by.value if self.ended_by else ""

    @property
    def was_interrupted(self) -> bool:
        """Whether the rank that failed first has ended of nothing but an interrupt, with a status
        of its own.
        """
        return self._reason().startswith(INTERRUPT)

    @property
    def has_a_reason(self) -> bool:
        """Whether `first` says of what it failed, and not only where or how."""
        if self.host:
            return bool(self._reason() or self.last_words)
        tells_of_a_task = self.task and not self._slurm_ended_the_task()
        if self.ended_by and not tells_of_a_task and not self.aborted:
            return False
        return bool(self.why.get("") or self.aborted or self.pyxis)

    def _reason(self) -> str:
        """Of what the rank that failed first has failed, as far as it has said so."""
        if said := self.why.get(self.rank) or self.aborted:
            return said
        if self.ended > 128:
            return (
                OUT_OF_MEMORY
                if self.ended == KILLED and self.out_of_memory
                else _signal(self.ended - 128)
            )
        if self.said:
            return self.said
        starts_of_python = self.ended == PYTHON_NOT_STARTED and PYTHON_STARTS.match(self.starts)
        if self.starts and (self.ended in NOT_STARTED or starts_of_python):
            return self.starts
        return ""

    @property
    def first(self) -> str:
        """What happened, whatever the status was: empty where nothing is known."""
        return self._judge(1)[1]


def _split_rank(line: str) -> tuple[str, str]:
    """(the rank that torch names before LINE, or nothing; the rest, from the last word on that
    begins a message).
    """
    line = line.rstrip("\r").rpartition("\r")[
        2
    ]  # a bar is drawn over itself; a terminal ends lines with both
    if label := LABEL.match(line):
        line = line[label.end() :]
    rank = ""
    if prefix := OF_RANK.match(line):
        rank, line = prefix[1], line[prefix.end() :]
    return rank, line[max(0, *(line.rfind(word) for word in BEGIN)) :]


def last_line(said: str, status: int, log: str = "") -> str:
    """The one line that a failed launch ends with."""
    return f"hpcstack: {said}; exit {status}" + (f"; log: {log}" if log else "")


def failure_in(text: str) -> Failure:
    """What TEXT, a log, says."""
    out = Failure()
    for line in text.split("\n"):
        out.feed(line)
    return out


def _named_by_slurm(said: str) -> EndedBy | None:
    """The reason that Slurm's word of a cancelled step gives; None where it gives none."""
    if "DUE TO TIME LIMIT" in said:
        return EndedBy.TIME_LIMIT
    if "DUE TO PREEMPTION" in said:
        return EndedBy.PREEMPTION
    if "DUE TO NODE FAILURE" in said:
        return EndedBy.NODE_FAILURE
    return None


def _signal(number: int) -> str:
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"killed by signal {number}"
