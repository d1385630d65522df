"""Read from the standard error of a step how it ended: which rank failed first, where and why.

Each rank prints one line with its exit status (launchers/in-image/rank.sh), torch puts `[rankN]: `
before tracebacks, and srun names the task that ended first. launchers/jobs/failure.awk does the
same in job scripts, in the same words; a test holds the two together. Pure: nothing is read but the
lines that are fed in.
"""

from __future__ import annotations

import enum
import re
import signal
from dataclasses import dataclass, field

from hpcstack.launch.log_lines import LEVEL, Labels
from hpcstack.slurm.state import MEANINGS, JobState
from hpcstack.slurm.step_messages import ENDED, SPEAKER

# Rank, host, exit status, [how often it was started again, the second of its end]. A `date` without
# %N leaves that sign behind.
RANK = re.compile(r"hpcstack: rank (\d+) on (\S+) ended with (\d+) \[(\d+) (\d+(?:\.\d+)?)\.?N?\]")
# What a rank says that fails while another one of its node is gone, which has not failed
LEFT = re.compile(r"hpcstack: rank (\d+) on (\S+) had left before \[(\d+) (\d+(?:\.\d+)?)\.?N?\]")
LEFT_S = 0.4  # a rank that has failed stays for longer: until then it has not left
# How srun says what a task ended of: a status, a signal in the words of strsignal(3), or Slurm's own
TASK = re.compile(
    r"srun: error: (\S{1,256}): tasks? (\d{1,9})[\d,-]{0,2000}: "
    r"(?:Exited with exit code (\d{1,9})|([A-Z][A-Za-z12 /]{2,40})(?: \(core dumped\))?)"
)
SIGNALS = {
    "Hangup": 1,
    "Interrupt": 2,
    "Quit": 3,
    "Illegal instruction": 4,
    "Trace/breakpoint trap": 5,
    "Aborted": 6,
    "Bus error": 7,
    "Floating point exception": 8,
    "Killed": 9,
    "User defined signal 1": 10,
    "Segmentation fault": 11,
    "User defined signal 2": 12,
    "Broken pipe": 13,
    "Alarm clock": 14,
    "Terminated": 15,
    "CPU time limit exceeded": 24,
    "File size limit exceeded": 25,
    "Bad system call": 31,
    "Out Of Memory": 9,
}
LAST_SIGNAL = (
    31  # above are those without a meaning of their own, and statuses that programs choose
)
# How a shell says which signal a program that it ran has ended of
SHELL = re.compile(
    r"\S{1,400}: line \d{1,9}: +\d{1,9} (Illegal instruction|Aborted|Bus error|Killed"
    r"|Floating point exception|Segmentation fault) .*"
)
CANCELLED = re.compile(
    rf"(?:(?:slurmstepd|srun)[^ ]{{0,200}}: |{SPEAKER}{ENDED}).{{0,400}} CANCELLED AT (.*)"
)
# Slurm 25.05 and newer say so of a step whose other tasks they end because one has failed.
OF_A_TASK = "DUE TO TASK FAILURE"
# Words that begin a message, also where a progress bar stands before them on the same line
BEGIN = (
    "hpcstack: rank ",
    "hpcstack: nothing was",
    "srun: error: ",
    "slurmstepd",
    "error: *** STEP ",
    "error: *** JOB ",
    "error: Detected ",
    "error: Step ",
    "error: Exceeded ",
    "error: pyxis: ",
    "error: spank: pyxis: ",
    "Traceback (most recent call last):",
)
HANGS = re.compile(r"hpcstack: nothing was written for (\d+) s: ")  # launch --watchdog
# Why a program could not start: what python, env, setsid, setpriv and shells say before they exit
# with 1, 2, 126 or 127
STARTS = re.compile(
    r"\S{0,200}python[0-9.]{0,20}: "
    r"(can't open file|No module named|Error while finding module specification) ?.*"
    r"|(env|setsid|setpriv|\S{0,200}sh): "
    r".{0,400}(Permission denied|No such file or directory|not found|Exec format error)"
)
PYTHON_STARTS = re.compile(
    r"\S*python[0-9.]*: (No module named|Error while finding module specification)"
)
NOT_STARTED = (2, 126, 127)
PYTHON_NOT_STARTED = 1
# What argparse, click and others say of wrong options before they exit with 2
WRONG_OPTION = re.compile(r"(\S+: )?[Ee]rror: .+")
WRONG_OPTIONS = 2
# What Open MPI and MPICH print of a call of MPI_Abort
MPI_ABORT = re.compile(r"MPI_ABORT was invoked on rank \d+ .*|Abort\(-?\d+\) on node \d+ .*")
# What Slurm prints of a task that was killed at its memory limit
OOM_KILL = re.compile(
    rf"{SPEAKER}error: (?:Detected \d+ oom[-_]kill events? in |(?:.{{0,200}} e|E)xceeded .{{0,40}}memory limit).*"
)
TERMINATED, KILLED = 143, 137  # exit statuses after SIGTERM and SIGKILL
ABORTED = "killed by SIGABRT"
OUT_OF_MEMORY = f"killed by SIGKILL: {MEANINGS['OUT_OF_MEMORY']}"
# Lines that are no reason for a failure: log lines below an error, progress bars, rules, messages
# of Slurm's and ours
NO_REASON = re.compile(
    r"^\[?[WIED][0-9]{4}|WARN|Warning|INFO|DEBUG|NOTE|%\||it/s"
    r"|^(\*|hpcstack:|srun:|salloc:|slurmstepd|\[\d{4}-\d\d-\d\dT[^\]]*\] error: )|^[-=*# ]*$"
)
PYXIS = re.compile(rf"{SPEAKER}error: (?:spank: )?pyxis: +(.*)")
# How Pyxis's lines begin that say only that it failed, not why
PYXIS_ECHOES = (
    "couldn't start container",
    "container start failed",
    "printing enroot log file",
    "printing contents of log file",
    "if the image has",
)
# A frame of Python's. faulthandler's, which writes the innermost first, has no comma before `in`.
FILE = re.compile(r'  File "([^"]+)", line (\d+)(?:, in |$)')
# The report of torch's @record in elastic's summary: a whole traceback, two blanks further in
REPORT = re.compile(r" +traceback : Traceback [(]most recent call last[)]:")
REPORTED_FILE = re.compile("  " + FILE.pattern)
ROOT_CAUSE = "Root Cause (first observed failure):"
# What elastic says of a worker that did not understand its options, and programs of how to use them
WRONG_WORKER = re.compile(r".{0,200} failed \(exitcode: 2\) local_rank: ")
USAGE = re.compile(r"[Uu]sage: ")
# Rich draws a box around a traceback: its frames, and whatever else is in it
BOX_BEGINS = re.compile(r"[^ -~]+ ?Traceback \(most recent call last\) ?[^ -~]+")
BOX_FRAME = re.compile(r"[^ -~]+ (/[^ :]+):(\d+) in ")
BOX = re.compile(r"[^ -~]")
EXCEPTION = re.compile(
    r"[A-Za-z_][A-Za-z0-9_.]*(Error|Exception|Interrupt|Exit|Expired|Iteration)(:|$)"
)
# An exception of any name, where it stands right below a traceback's frames
ANY_EXCEPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(: |$)")
# Python draws a tree of the exceptions of a group: a margin before each line, and rules between them
GROUP = re.compile(r"[A-Za-z_.]*ExceptionGroup: ")
MARGIN = re.compile(r" +[|] ?")
RULE = re.compile(r" +[+][-+ ]")
LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3|^<")
TRACEBACK = "Traceback (most recent call last):"
INTERRUPT = "KeyboardInterrupt"
# A log line of somebody's: it may stand in the middle of another one's traceback.
LOG_LINE = re.compile(
    r"\[?(INFO|DEBUG|WARNING|WARN|ERROR|CRITICAL|NOTE|TRACE)[]: |]|\[?[WIED][0-9][0-9][0-9][0-9]"
)
# The logging module, and Python's clean-up, print these before a traceback that ends nothing.
HARMLESS = re.compile(r"--- Logging error ---$|Exception ignored in")
# What a rank may still write after the exception that ends it: warnings, and its threads' ends
OF_AN_END = re.compile(
    r"^\[?[WEF][0-9][0-9][0-9][0-9]|WARN|Warning|ERROR|^Exception in thread|^terminate called|^wandb: "
    r"|:sigkill_handler\]"  # DeepSpeed's launcher, which ends the others
)
# How lines read of a program that goes on: log lines, progress, and what it does next. All others may
# be of the message of an exception.
GOES_ON = re.compile(
    r"^\[?(info|debug|notice)[]: |]|^\[?[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9][t ,]|%\||it/s"
    r"|(epoch|step|iter|iteration|loss|batch)[^a-z0-9.]{1,3}[0-9]"
    r"|^(retry|trying|resum|restart|continu|carry|going on|training|finished|done|saved|saving|loaded"
    r"|loading|skipp|falling back|starting|using|attempt|caught|recovered|all )",
    re.IGNORECASE,
)
# What a rank says of which another one was the cause: it waited for it, or started it
VICTIM = re.compile(
    r"DistBackendError|DistNetworkError|DistStoreError|Rendezvous|CalledProcessError"
    r"|ProcessRaisedException|ProcessExitedException|BrokenPipeError|Connection closed by peer"
    r"|Connection reset by peer|ncclRemoteError|remote process exited|Watchdog caught collective"
    r"|HorovodInternalError|NCCL communicator was aborted|monitoredBarrier"
    r"|Timed out initializing process group"
)
# What makes one of these a cause of its own: NCCL names what has failed on this very rank
OF_ITSELF = re.compile(r"Cuda failure|unhandled cuda error|EADDRINUSE|[Aa]ddress already in use")
# What says that the cause stands somewhere above: vLLM of its workers and its engine
POINTS_ABOVE = re.compile(
    r"WorkerProc initialization failed|Engine core initialization failed|See root cause above"
)
# What ends a program that was told to end
TOLD = re.compile(r"KeyboardInterrupt|SystemExit|SignalException|Interrupt")
# What says only that a program or a worker which was started has failed: what follows says of what
OF_A_PROGRAM = re.compile(
    r"[A-Za-z_.]*CalledProcessError|[A-Za-z_.]+: Caught [A-Za-z_.]+ in (DataLoader worker|replica|pin memory)"
)
# A job that is put back into the queue writes into the same log: only its last start counts.
STARTED_AGAIN = re.compile(
    rf"hpcstack: start \d+ of job |{SPEAKER}{ENDED}.{{0,200}} DUE TO JOB REQUEUE"
    r"|.{0,200}Worker group FAILED\. \d+/\d+ attempts left; will restart worker group"
)
# How lines begin that tell of an end wherever they stand
TELLING = re.compile(
    "|".join(
        f"(?:{pattern.pattern})"
        for pattern in (
            STARTED_AGAIN,
            CANCELLED,
            OOM_KILL,
            PYXIS,
            STARTS,
            MPI_ABORT,
            HARMLESS,
            BOX_BEGINS,
            BOX_FRAME,
            FILE,
            REPORTED_FILE,
            EXCEPTION,
            WRONG_OPTION,
            WRONG_WORKER,
            USAGE,
            SHELL,
            re.compile(re.escape(ROOT_CAUSE)),
            MARGIN,
            RULE,
        )
    )
)
OWN_FAILURE = 125  # srun's status for failures of its own: a plan sets SLURM_EXIT_ERROR to it


class EndedBy(enum.Enum):
    """What ended a step from outside. The values are the states in which Slurm leaves such a job."""

    CANCEL = "CANCELLED"
    TIME_LIMIT = "TIMEOUT"
    PREEMPTION = "PREEMPTED"
    NODE_FAILURE = "NODE_FAIL"
    WATCHDOG = "FAILED"


# Where Slurm ends a step itself, its status is 143, whatever statuses the ranks ended with.
BY_SLURM = (EndedBy.CANCEL, EndedBy.TIME_LIMIT, EndedBy.PREEMPTION)
# After these a job is put back into the queue, and writes into the same log.
OF_A_REQUEUE = (EndedBy.PREEMPTION, EndedBy.NODE_FAILURE)
# By how Slurm ended a step: the exit statuses that it gives to the tasks.
STATUSES = {
    EndedBy.CANCEL: (TERMINATED,),
    EndedBy.TIME_LIMIT: (TERMINATED, KILLED),
    EndedBy.PREEMPTION: (TERMINATED, KILLED),
}


@dataclass
class Failure:
    """What the lines fed so far say of the step's end.

    Dictionaries and sets are by the rank that torch names in `[rankN]: `; the key is empty for
    lines without such a prefix.
    """

    # The rank that failed first
    rank: str = ""
    host: str = ""
    ended: int = 0  # its exit status
    moment: tuple[int, float] = (-1, 0.0)  # how often it had been started again, and the second
    line: str = ""  # the line that says so
    task: tuple[str, str, int] | None = None  # the first task that srun names: task, host, status
    several_tasks: bool = False  # srun names another one, too
    task_words: str = ""  # the last words of the task when srun named it
    ended_by: EndedBy | None = None
    silent_s: int = 0  # with EndedBy.WATCHDOG: for how long nothing had been written
    # Tracebacks
    open: set[str] = field(default_factory=set)  # ranks in a traceback, whose exception is due
    inside: set[str] = field(default_factory=set)  # ranks whose last line was a frame
    place: dict[str, str] = field(default_factory=dict)  # the innermost frame
    own: dict[str, str] = field(default_factory=dict)  # the innermost frame outside of libraries
    why: dict[str, str] = field(default_factory=dict)  # the exception, with the place
    is_logged: bool = False  # the label of this line has a level of logging
    logged: set[str] = field(default_factory=set)  # ranks whose exception was only logged
    just: set[str] = field(default_factory=set)  # ranks whose last line was an exception
    harmless: set[str] = field(default_factory=set)  # ranks in a traceback that ends nothing
    went_on: set[str] = field(default_factory=set)  # ranks that wrote something after an exception
    groups: set[str] = field(default_factory=set)  # ranks in the tree of an exception group
    reports: set[str] = field(default_factory=set)  # ranks in a report of @record's
    at_root: bool = False  # elastic's summary has come to the root cause
    # Around the end from outside: exceptions of ranks that had not gone on, and were told nothing
    before_end: str = ""
    after_end: str = ""
    after_end_of: str = ""  # whose that is
    is_of_a_step: bool = False  # Slurm ended a step, and not the job
    labels: Labels = field(default_factory=Labels)
    # Other reasons
    said: str = ""  # what was said without a rank when the first one ended; the rest are echoes
    wrong: dict[str, str] = field(default_factory=dict)  # what a program said of its options
    is_wrong: bool = False  # somebody has ended of that
    killed: str = ""  # of which signal a shell says that its program has ended
    aborted: str = ""  # what MPI_Abort said
    last: dict[str, str] = field(default_factory=dict)  # the last line that may be a reason
    last_words: str = ""  # that of the rank that failed first
    left: str = ""  # a rank, with its node, that was gone when another one failed
    left_at: tuple[int, float] = (-1, 0.0)  # when that was, as `moment`
    out_of_memory: bool = False
    others_are_ended: bool = False  # by Slurm, because one task has failed
    starts: str = ""  # why a program could not start
    pyxis: str = ""  # why Pyxis could not start the container

    def feed(self, line: str) -> None:
        """Read one LINE of the step's standard error, without its newline."""
        whole = line
        rank, line = self.labels.split(line)
        self.is_logged = bool(LEVEL.search(whole.removesuffix(line))) if line else False
        line = find_message(self._strip(rank, line))
        if STARTED_AGAIN.match(line):
            self._forget()
        elif found := RANK.fullmatch(line):
            self._read_end_of_rank(found)
        elif found := LEFT.fullmatch(line):
            if not self.left:
                self.left = f"rank {found[1]} on {found[2]}"
                self.left_at = int(found[3]), float(found[4])
        elif self._read_word_of_slurm(line):
            return
        elif not self.starts and not self.host and STARTS.fullmatch(line):
            self.starts = line[:300]
        elif not self.aborted and not self.host and MPI_ABORT.fullmatch(line):
            self.aborted = line[:300]
        else:
            self._read_traceback(rank, line)

    def _forget(self) -> None:
        """Forget all but the labels: the job starts again, and writes into the same log."""
        fresh = Failure(labels=self.labels)
        vars(self).update(vars(fresh))

    def _read_word_of_slurm(self, line: str) -> bool:
        """Read LINE if Slurm, Pyxis, a shell or the watchdog says it. Return whether one of them does."""
        found = TASK.fullmatch(line)
        if found and (found[3] or found[4] in SIGNALS):
            self._read_end_of_task(found)
        elif found := CANCELLED.match(line):
            if OF_A_TASK in found[1]:
                self.others_are_ended = True
            else:
                self._end(_find_cause(found[1]) or self.ended_by or EndedBy.CANCEL)
                self.is_of_a_step = "*** STEP " in line
        elif found := HANGS.match(line):
            self.silent_s = int(found[1])
            self._end(self.ended_by or EndedBy.WATCHDOG)
        elif line.startswith("srun: error: Node failure on "):
            self._end(EndedBy.NODE_FAILURE)
        elif found := PYXIS.match(line):
            if not self.pyxis and not found[1].startswith(PYXIS_ECHOES):
                self.pyxis = found[1][:300]
        elif OOM_KILL.fullmatch(line):
            self.out_of_memory = True
        elif found := SHELL.match(line):
            if not self.killed and not self.ended_by:
                self.killed = _describe_signal(SIGNALS[found[1]])
        else:
            return False
        return True

    def _end(self, ended_by: EndedBy) -> None:
        """Keep that the step was ended from outside, and of what a rank had failed before."""
        if not self.ended_by:
            speaker, said = self._find_exception()
            self.before_end = "" if speaker in self.went_on or TOLD.search(said) else said
        self.ended_by = ended_by

    def _read_end_of_task(self, found: re.Match[str]) -> None:
        """Keep the end FOUND if its task failed first.

        A task that ends after the step, or the others of it, were ended has not failed. But srun, which
        ends a step of which a task has failed, may say so before it says which one. And a job that was
        put back into the queue writes into the same log.
        """
        status = int(found[3]) if found[3] else 128 + SIGNALS[found[4]]
        by_itself = status not in (TERMINATED, KILLED)
        if self.task and found[2] != self.task[0] and by_itself:
            self.several_tasks = True
        if self.task or self.others_are_ended:
            return
        by_srun = self.ended_by is EndedBy.CANCEL and self.is_of_a_step and self.before_end
        has_failed_since = self.after_end and self.after_end_of not in self.went_on
        has_started_again = self.ended_by in OF_A_REQUEUE and has_failed_since and status < 128
        if self.ended_by and not (by_itself and (by_srun or has_started_again)):
            return
        if has_started_again:
            self.why = {self.after_end_of: self.after_end}
        self.ended_by = None
        self.task = found[2], found[1], status
        self.task_words = self.last.get(f"{found[2]}:") or self.last.get("", "")
        if found[4] == "Out Of Memory":
            self.out_of_memory = True

    def _read_end_of_rank(self, found: re.Match[str]) -> None:
        """Keep the end FOUND if its rank failed first.

        Where the workers were started again, the ends of the latest start count, and of these the
        earliest.
        """
        if self.ended_by:
            return  # the step was ended from outside: this rank was told to end
        again, moment = int(found[4]), float(found[5])
        is_earlier = again == self.moment[0] and moment < self.moment[1]
        if self.host and not again > self.moment[0] and not is_earlier:
            return

        self.rank = found[1]
        self.host = found[2]
        self.ended = int(found[3])
        self.moment = again, moment
        self.line = found[0]
        self.said = self._find_said()
        if not self.said and self.ended == WRONG_OPTIONS:
            self.said = self.wrong.get(self.rank) or self.wrong.get("", "")
        self.last_words = self.last.get(self.rank) or self.last.get("", "")

    def _find_said(self) -> str:
        """Return the exception of whoever names no rank; of several, one that no other was the cause of."""
        found = [said for name, said in self.why.items() if not name or name.endswith(":")]
        own = (said for said in found if not _is_victim(said))
        return next(own, "") or next(iter(found), "")

    def _read_traceback(self, rank: str, line: str) -> None:
        """Read LINE of RANK: a part of a traceback, or any other line, which may be a reason."""
        is_beside_one = rank in self.just
        self.just.discard(rank)
        if HARMLESS.match(line):
            self.harmless.add(rank)
            self.inside.discard(rank)
        elif line.startswith(TRACEBACK) or BOX_BEGINS.match(line):
            self.open.add(rank)
            self.place.pop(rank, None)
            self.own.pop(rank, None)
            self.inside.discard(rank)
        elif self._read_inside(rank, line):
            return
        elif EXCEPTION.match(line) or (rank in self.inside and ANY_EXCEPTION.match(line)):
            self._read_exception(rank, line, is_beside_one=is_beside_one)
            self.inside.discard(rank)
            self.just.add(rank)
        else:
            self._read_other(rank, line)
            self.inside.discard(rank)

    def _read_inside(self, rank: str, line: str) -> bool:
        """Read LINE if it stands within a traceback of RANK. Return whether it does."""
        found = FILE.match(line)
        if found is None and rank in self.open:
            found = BOX_FRAME.match(line)
        if found:
            self.open.add(rank)
            self.place[rank] = f"{found[1]}, line {found[2]}"
            if not LIBRARY.search(found[1]):
                self.own[rank] = self.place[rank]
            self.inside.add(rank)
            return True
        if rank not in self.inside:
            return False
        # A line of source, the marks below it, the rest of a box, or another one's log line
        return line.startswith(" ") or bool(BOX.match(line)) or bool(LOG_LINE.match(line))

    def _read_exception(self, rank: str, line: str, *, is_beside_one: bool) -> None:
        """Keep the exception in LINE, with its place, if it is what RANK has ended of.

        It may stand right beside another one: two ranks without labels write their tracebacks at once.
        """
        # ChildFailedError is torchrun's report of a rank that failed, and no reason itself.
        harmless = rank in self.harmless or "ChildFailedError" in line
        known = self.why.get(rank, "")
        # The first exception counts. But a rank that was interrupted may fail of another one as it
        # ends, and one that went on after an exception had caught it.
        as_it_ended = known.startswith(INTERRUPT) and not line.startswith(INTERRUPT)
        was_caught = rank in self.went_on and not self.host and not _is_victim(line)
        # Of a group, the first that no other rank was the cause of counts, and not the group itself.
        is_in_group = rank in self.groups
        is_of_group = is_in_group and (bool(GROUP.match(known)) or _is_victim(known))
        says_for_what = bool(OF_A_PROGRAM.match(known)) and not OF_A_PROGRAM.match(line)
        # Of several ranks without a label each, what another one was the cause of gives way.
        is_anybodys = not rank or rank.endswith(":")
        has_a_cause = _is_victim(line) or TOLD.search(line)
        gives_way = is_anybodys and _is_victim(known) and not has_a_cause
        is_the_root = self.at_root and rank in self.reports
        is_new = not known or as_it_ended or was_caught or is_of_group or says_for_what
        is_raised = rank in self.logged and not self.is_logged
        is_new = is_new or gives_way or is_the_root or is_raised
        is_due = rank in self.open or is_in_group or (is_beside_one and gives_way)
        if is_due and is_new and not harmless:
            place = self.own.get(rank) or self.place.get(rank)
            self.why.pop(rank, None)  # their order is that in which they came
            self.why[rank] = line[:300] + (f" ({place})" if place else "")
            self.went_on.discard(rank)
            self.logged.discard(rank)
            if self.is_logged:
                self.logged.add(rank)
            if self.ended_by and not _is_victim(line) and not TOLD.search(line):
                self.after_end, self.after_end_of = self.why[rank], rank
        if GROUP.match(line):
            self.groups.add(rank)
        self.open.discard(rank)
        self.harmless.discard(rank)

    def _strip(self, rank: str, line: str) -> str:
        """Return LINE of RANK as Python wrote it: without the margins of a group or of a report."""
        if rank in self.open or rank in self.groups:
            line = self._strip_margin(rank, line)
        if REPORT.match(line):
            self.reports.add(rank)
        elif rank in self.reports:
            line = self._strip_report(rank, line)
        return line

    def _strip_margin(self, rank: str, line: str) -> str:
        """Return LINE of RANK without the margin of an exception group's tree, if it has one."""
        if RULE.match(line):
            return line if "Traceback" in line else ""
        margin = MARGIN.match(line)
        if margin:
            return line[margin.end() :]
        self.groups.discard(rank)
        return line

    def _strip_report(self, rank: str, line: str) -> str:
        """Return LINE of RANK as it stood in a traceback that @record has reported."""
        if line.startswith("  "):
            return line[2:]
        self.reports.discard(rank)
        return line

    def _read_other(self, rank: str, line: str) -> None:
        """Read LINE of RANK, which is no part of a traceback."""
        speakers = {rank, ""} if rank.endswith(":") else {rank}
        if line.startswith(ROOT_CAUSE):
            self.at_root = True
        elif USAGE.match(line) or WRONG_WORKER.match(line):
            self.is_wrong = True
        elif WRONG_OPTION.fullmatch(line):
            self.wrong.update(dict.fromkeys(speakers, line[:300]))
        elif not self.host and not NO_REASON.search(line):
            self.last.update(dict.fromkeys(speakers, line[:300]))
        if rank in self.why and not is_of_an_end(line):
            self.went_on.add(rank)

    def end(self, status: int) -> tuple[int, str]:
        """Return (the status that counts, what happened in words) of a step that ended with STATUS.

        The status that counts is that of the rank, or else of the task, that failed first: srun's
        own is the highest of all. The words are empty where the step has not failed.
        """
        state, said = self._judge(status)
        if state.exit and not said:
            said = state.meaning
        return state.exit, said

    def read_state(self, status: int) -> JobState:
        """Return the state, in Slurm's word, of a step that ended with STATUS."""
        return self._judge(status)[0]

    def _judge(self, status: int) -> tuple[JobState, str]:
        """Return (the state, what happened in words); no words where nothing is known."""
        if status == 0:
            return JobState("COMPLETED"), ""
        if self.host:
            who = f"rank {self.rank} on {self.host}"
            said = f"{who} failed first"
            reason = self._find_reason()
            if self._has_left_before() and _is_victim(reason):
                said = (
                    f"{self.left} had ended before, without an error; then {who} failed: {reason}"
                )
            elif reason:
                said += f": {reason}"
            elif self.last_words:
                said += f"; the last line before: {self.last_words}"
            word = "OUT_OF_MEMORY" if reason == OUT_OF_MEMORY else "FAILED"
            return JobState(word, self.ended), said

        if self.task and status != OWN_FAILURE and not self._slurm_ended_the_task():
            return self._judge_task(self.task)
        # MPI_Abort makes Slurm cancel the step: it counts before the cancel.
        if self.aborted:
            return JobState("FAILED", status), self._find_own_exception() or self.aborted
        if self.ended_by is EndedBy.CANCEL and self.out_of_memory:
            return JobState("OUT_OF_MEMORY", KILLED), MEANINGS["OUT_OF_MEMORY"]
        if self.ended_by:
            counts = TERMINATED if self.ended_by in BY_SLURM else status
            return JobState(self.ended_by.value, counts), self._describe_end_from_outside()

        speaker, said = self._find_exception()
        uncaught = "" if speaker in self.went_on else said
        wrong = self.wrong.get("", "") if self.is_wrong else ""
        killed = self.killed
        if killed and self.out_of_memory:
            killed = OUT_OF_MEMORY
        word = "OUT_OF_MEMORY" if killed == OUT_OF_MEMORY and not uncaught else "FAILED"
        return JobState(word, status), uncaught or self.pyxis or killed or wrong or said

    def _is_of_another_task(self, speaker: str) -> bool:
        """Whether SPEAKER, a rank, may be of another task than the first that srun named.

        A task may have started several ranks. Of whichever task it is, it is one that failed.
        """
        if not self.several_tasks or not speaker.isdigit() or speaker in self.went_on:
            return False
        return self.task is not None and speaker != self.task[0]

    def _find_own_exception(self) -> str:
        """Return an exception that ended its rank, and that no other rank was the cause of."""
        speaker, said = self._find_exception()
        return "" if speaker in self.went_on or _is_victim(said) else said

    def _judge_task(self, task: tuple[str, str, int]) -> tuple[JobState, str]:
        """Return (the state, what happened in words) of a step of which TASK failed first."""
        number, host, status = task
        who = f"task {number} on {host}"
        speaker, said = self._find_exception(f"{number}:")
        if speaker.endswith(":") and speaker != f"{number}:":
            who = f"task {speaker[:-1]}"  # srun names them in the order in which it hears of them
        elif self._is_of_another_task(speaker):
            who = f"rank {speaker}"
        uncaught = "" if speaker in self.went_on else said
        signal_ = _describe_signal(_signal_of(status)) if _signal_of(status) else ""
        if status == KILLED and self.out_of_memory:
            signal_ = OUT_OF_MEMORY
        wrong = ""
        if status == WRONG_OPTIONS:
            wrong = self.wrong.get(f"{number}:") or self.wrong.get("", "")
        reason = uncaught or self.aborted or self.pyxis or signal_ or wrong or said
        word = "OUT_OF_MEMORY" if reason == OUT_OF_MEMORY else "FAILED"
        words = f"; the last line before: {self.task_words}" if self.task_words else ""
        if reason == ABORTED:  # who aborts says why
            return JobState(word, status), f"{who} failed first: {reason}{words}"
        if reason:
            return JobState(word, status), f"{who} failed first: {reason}"
        return JobState(word, status), f"{who} failed first{words}"

    def _has_left_before(self) -> bool:
        """Whether a rank was gone when the first one failed."""
        again, at = self.left_at
        return again == self.moment[0] and at < self.moment[1] + LEFT_S

    def _slurm_ended_the_task(self) -> bool:
        """Whether Slurm ended the first task, though it said so only after the task's end."""
        if not self.task or not self.ended_by:
            return False
        return self.task[2] in STATUSES.get(self.ended_by, ())

    def _describe_end_from_outside(self) -> str:
        """Return how the step was ended from outside; empty where it was not."""
        if not self.ended_by:
            return ""
        if self.ended_by is EndedBy.WATCHDOG:
            return f"nothing was written for {self.silent_s} s"
        return MEANINGS[self.ended_by.value]

    @property
    def failed_first(self) -> tuple[str, str]:
        """Who failed first, a rank or a task by its number, and on which node; empty if unknown."""
        if self.host:
            return self.rank, self.host
        if self.task and not self._slurm_ended_the_task():
            number, host, _ = self.task
            speaker, _ = self._find_exception(f"{number}:")
            is_another = speaker.endswith(":") and speaker != f"{number}:"
            if is_another or self._is_of_another_task(speaker):
                return speaker.removesuffix(":"), ""
            return number, host
        speaker, said = self._find_exception()
        is_named = speaker.isdigit() and speaker not in self.went_on and self.first == said
        return (speaker, "") if is_named else ("", "")

    @property
    def was_interrupted(self) -> bool:
        """Whether the rank that failed first ended of a KeyboardInterrupt and nothing else."""
        return self._find_reason().startswith(INTERRUPT)

    @property
    def has_a_reason(self) -> bool:
        """Whether `first` says why the step failed, and not only where or how."""
        if self.host:
            return bool(self._find_reason() or self.last_words)
        tells_of_a_task = self.task and not self._slurm_ended_the_task()
        if self.ended_by and not tells_of_a_task and not self.aborted:
            return False
        return bool(self.why or self.aborted or self.pyxis or self.killed or self.is_wrong)

    @property
    def uncaught(self) -> str:
        """The exception that a rank had ended of before the end from outside, or at all; else empty."""
        if self.ended_by:
            return self.before_end
        speaker, said = self._find_exception()
        return "" if speaker in self.went_on else said

    @property
    def is_bare_signal(self) -> bool:
        """Whether nothing is known but the signal that a task ended of."""
        if self.host or not self.task or not _signal_of(self.task[2]) or self.out_of_memory:
            return False
        return not (self.why or self.aborted or self.pyxis)

    @property
    def failed_again(self) -> str:
        """The exception that a job ended of which was put back into the queue; else empty."""
        has_failed = self.ended_by in OF_A_REQUEUE and self.after_end_of not in self.went_on
        return self.after_end if has_failed else ""

    @property
    def is_caught(self) -> bool:
        """Whether `first` is nothing but an exception after which its program went on."""
        speaker, said = self._find_exception()
        return bool(said) and speaker in self.went_on and self.first == said

    def _find_exception(self, preferred: str | None = None) -> tuple[str, str]:
        """Return (who, what) of the exception that came first, where no rank is known to have failed.

        One of PREFERRED counts before others. What another rank was the cause of counts only where
        there is nothing else, and what somebody went on after last of all.
        """

        def rank_of(item: tuple[str, str]) -> tuple[bool, bool, bool, bool]:
            speaker, said = item
            points_above = bool(POINTS_ABOVE.search(said))
            ended_nothing = speaker in self.went_on or speaker in self.logged
            return points_above, ended_nothing, _is_victim(said), speaker != preferred

        return min(self.why.items(), key=rank_of, default=("", ""))

    def _find_reason(self) -> str:
        """Return why the rank that failed first failed; empty where nothing says so.

        Its own exception counts most, then a call of MPI_Abort, then the signal that killed it.
        """
        own = self.why.get(self.rank, "")
        # One that it went on after does not explain a signal.
        if self.rank in self.went_on and _signal_of(self.ended):
            own = ""
        if own or self.aborted:
            return own or self.aborted
        if self.ended == KILLED and self.out_of_memory:
            return OUT_OF_MEMORY
        if _signal_of(self.ended):
            return _describe_signal(_signal_of(self.ended))
        if self.said:
            return self.said

        if self.ended in NOT_STARTED:
            return self.starts
        # Any program may exit with 1: only what Python itself says is its reason.
        if self.ended == PYTHON_NOT_STARTED and PYTHON_STARTS.match(self.starts):
            return self.starts
        return ""

    @property
    def first(self) -> str:
        """What happened, whatever the status was; empty where nothing is known."""
        return self._judge(1)[1]


def make_awk_meanings() -> str:
    """Return the words of awk for each end from outside, by Slurm's word for it."""
    words = [one.value for one in EndedBy if one is not EndedBy.WATCHDOG]
    words.append("OUT_OF_MEMORY")
    lines = [f'    MEANING["{word}"] = "{MEANINGS[word]}"' for word in words]
    return "\n".join(lines).replace("'", "\\047")


def _is_victim(said: str) -> bool:
    """Whether SAID, an exception, is one that another rank was the cause of."""
    return bool(VICTIM.search(said)) and not OF_ITSELF.search(said)


def is_of_an_end(line: str) -> bool:
    """Whether a rank may write LINE after the exception that ends it, rather than go on.

    The message of an exception may have any number of lines.
    """
    if line[:1] in ("", " ", "*", "=", "-") or OF_AN_END.search(line):
        return True
    return not GOES_ON.search(line)


def _signal_of(status: int) -> int:
    """Return the signal that an exit STATUS stands for; 0 for none."""
    return status - 128 if 128 < status <= 128 + LAST_SIGNAL else 0


def may_say_how_it_ended(line: str) -> bool:
    """Whether LINE may be more than somebody's last words, where it stands in no traceback."""
    return any(word in line for word in BEGIN) or bool(TELLING.match(line))


def find_message(line: str) -> str:
    """Return LINE from where a message begins: a progress bar may stand before it."""
    begin = max(0, *(line.rfind(word) for word in BEGIN))
    return line[begin:]


def last_line(said: str, status: int, log: str = "") -> str:
    """Return the one line that a failed launch ends with."""
    out = f"hpcstack: {said}; exit {status}"
    if log:
        out += f"; log: {log}"
    return out


def _find_cause(said: str) -> EndedBy | None:
    """Return the cause that SAID, Slurm's message of a cancelled step, names; None for no cause."""
    if "DUE TO TIME LIMIT" in said:
        return EndedBy.TIME_LIMIT
    if "DUE TO PREEMPTION" in said:
        return EndedBy.PREEMPTION
    if "DUE TO NODE FAILURE" in said:
        return EndedBy.NODE_FAILURE
    return None


def _describe_signal(number: int) -> str:
    """Return `killed by SIGSEGV` for 11."""
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"killed by signal {number}"
