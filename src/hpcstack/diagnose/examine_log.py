"""Read a log once: how its last start ended, the known messages in it, and what reads like an error.

A log may have millions of lines, and nearly all of them differ in their numbers alone. So lines are
told apart by their shape, which is the line with each digit as a 0. What a shape may say is found out
once. Of lines that say nothing, only the last ones are looked at again: they are somebody's last
words where something else follows.
"""

from __future__ import annotations

import bisect
import io
import itertools
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from hpcstack.diagnose.signatures import (
    KnownFailure,
    Signature,
    make_known_failure,
    read_harmless,
    read_signatures,
)
from hpcstack.diagnose.speakers import MOST_LOOKED_AT, STRONG, WEAK, Suspect
from hpcstack.launch.failure import (
    NO_REASON,
    STARTED_AGAIN,
    TASK,
    Failure,
    find_message,
    is_of_an_end,
    may_say_how_it_ended,
)
from hpcstack.launch.log_lines import Labels, read_log_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LONGEST = 4096  # of a longer line only the part around a literal is searched
PIECE = 64 << 10  # bytes: a longer line is read as several
SHAPES = 100_000  # that are remembered
DIGITS = bytes.maketrans(b"123456789", b"000000000")
# In a shape, where each digit is a 0
HEXADECIMAL = re.compile(rb"(?<![0-9A-Za-z])[0a-f-]*0[0a-f-]{7,}")
LETTERS = bytes(byte if chr(byte).isalpha() and byte < 128 else 32 for byte in range(256))
# One of them is in each line that says that a job starts again
MAY_START = (b"hpcstack: start ", b"DUE TO JOB REQUEUE", b"will restart worker group")
# Lines that pip prints when it builds something
OF_PIP = re.compile(
    r"^\s*(?:Collecting \S|Building wheel|Preparing metadata|Getting requirements to build"
    r"|error: subprocess)"
)
# How a log says that a step is being ended: by slurmstepd, by srun with --kill-on-bad-exit, or by
# the watchdog
ENDS = re.compile(
    r"^.* CANCELLED AT |^hpcstack: nothing was written for |^hpcstack: interrupted"
    r"|^.{0,400}srun: .{0,400}(?:Terminating (?:StepId=|job step )|Job step aborted: )"
)
# What the watchdog prints of the ranks begins and ends so
ASKED, ANSWERED = "hpcstack: silent for ", "hpcstack: nothing was written for "
# How hpcstack says that it does not do what it was asked for (core/errors.py)
REFUSAL, ADVICE = "ERROR: ", ("  TIP: ", "  READ: hpcstack help ")
MOST_OF_RANKS = 200_000  # lines of it that are kept
# Signatures that are a cause although they are said after the end: Slurm looks for kills by memory
# when a step is over
OUT_OF_MEMORY = ("slurm-oom-kill", "slurm-task-out-of-memory", "slurm-memory-limit-some-point")
# Signatures of what srun says of tasks that were killed: these have no last words of their own, so
# they may be the cause until the step is ended
OF_KILLED_TASKS = ("slurm-task-bus-error", "slurm-task-segfault", "slurm-task-killed")
NEVER = 1 << 62  # the number of a line that is not there


@dataclass(frozen=True)
class LogReading:
    """What a log says. Lines are numbered from 1; what did not happen is at NEVER.

    `found` are the known messages, the likeliest root first, and `suspects` the first lines that read
    like an error. From line `step_ends` on the step was being ended; in line `rank_ends` the rank that
    failed first has ended. `ranks` is what the watchdog has printed of them, and `refusal` why hpcstack
    itself did not do what it was asked for, with what it says to do.
    """

    failure: Failure
    found: tuple[KnownFailure, ...]
    suspects: tuple[Suspect, ...]
    step_ends: int
    rank_ends: int
    pip_ran: bool
    ranks: str
    refusal: str = ""

    def list_causes(self) -> list[KnownFailure]:
        """Return what of `found` the rest of the log does not rule out as the cause.

        What is said after the first rank has failed, or after the step was ended, follows from that:
        a bus error where the image went away under a launcher, a connection that a peer closed. So
        does what another rank says. pip's isolated builds are no cause where pip did not run.
        """
        return [one for one in self.found if self._may_be_a_cause(one)]

    def _may_be_a_cause(self, one: KnownFailure) -> bool:
        known = one.signature.id
        if known == "pip-build-module-missing" and not self.pip_ran:
            return False
        if known in OUT_OF_MEMORY:
            return True
        if known in OF_KILLED_TASKS:
            return one.number < self.step_ends
        if one.number == self.step_ends and not self.failure.line:
            return True  # why Slurm ended it stands in the very line that says so
        speaker, _ = Labels().split(one.line)
        is_anothers = speaker.isdigit() and self.failure.rank not in ("", speaker)
        end = self.rank_ends if self.failure.line else self.step_ends
        return one.number < end and not is_anothers


@dataclass(frozen=True)
class _Form:
    """What lines may say that differ in numbers and in names of hexadecimal digits alone.

    KIND is that of the dictionary of last words, by its place in `_LogReader.last`.
    """

    tells_of_an_end: bool
    signatures: tuple[Signature, ...]
    kind: int


@dataclass(frozen=True)
class _Shape:
    """What lines of a shape may say.

    Their speaker is named from `begin` to `end`. If they tell nothing of an end, they may be their
    speaker's last words: of the kind whose dictionary is `last`.
    """

    tells_of_an_end: bool
    signatures: tuple[Signature, ...]  # that they may have
    begin: int
    end: int
    last: dict[bytes, int]


def examine_log(blocks: Iterable[bytes]) -> LogReading:
    """Return what a log says that comes in BLOCKS of whole lines (`log_lines.read_log_blocks`)."""
    reader = _LogReader()
    for block in blocks:
        reader.feed(block)
    return reader.end()


def join_readings(readings: Sequence[LogReading]) -> LogReading:
    """Return what several logs of one job say: what it wrote to stdout and to stderr, say.

    How it ended is said by the one that knows most of it. Lines of several files have no order, so that
    nothing is ruled out as said after the end.
    """
    if not readings:
        return examine_log(())
    if len(readings) == 1:
        return readings[0]
    main = min(readings, key=_rank_reading)
    found = [one for reading in readings for one in reading.found]
    return replace(
        main,
        found=tuple(sorted(found, key=lambda one: (-one.signature.rank, one.number))),
        suspects=tuple(one for reading in readings for one in reading.suspects),
        step_ends=NEVER,
        rank_ends=NEVER,
        pip_ran=any(one.pip_ran for one in readings),
        refusal=next((one.refusal for one in readings if one.refusal), ""),
    )


def _rank_reading(reading: LogReading) -> tuple[bool, ...]:
    """Return how much READING knows of the end, the most first."""
    failure = reading.failure
    return (
        not failure.host,
        not failure.task,
        failure.ended_by is None,
        not failure.uncaught,
        not failure.first,
    )


def examine_text(text: str) -> LogReading:
    """Return what TEXT, a whole log, says."""
    return examine_log(read_log_blocks(io.BytesIO(text.encode("utf-8", "replace"))))


def explain_log(text: str) -> tuple[KnownFailure, ...]:
    """Return the known messages in TEXT, a log, the likeliest root first; of equals the earlier one."""
    return examine_text(text).found


class _LogReader:
    """Reads the blocks of a log in their order."""

    def __init__(self) -> None:
        self.failure = Failure()
        self.before = 0  # lines in the blocks that were read
        # Of this block: the lines, and the indexes of those that go on with the line before
        self.lines: list[bytes] = []
        self.continued: list[int] = []
        self.drawn_over: set[int] = set()  # of which only known messages are looked for
        # The last dull lines of each speaker, {speaker: index in `lines`}: of those that may be a
        # reason and those that are none, in each case those that go on after an exception and others
        self.last: tuple[dict[bytes, int], ...] = ({}, {}, {}, {})
        self._forget()

    def _forget(self) -> None:
        """Forget what was read: the job starts again."""
        self._forget_shapes()
        self.found: dict[str, KnownFailure] = {}
        self.suspects: dict[bool, list[Suspect]] = {True: [], False: []}  # {is it strong: which}
        self.step_ends = self.rank_ends = NEVER
        self.pip_ran = False
        self.is_answering = False  # the watchdog has asked the ranks
        self.ranks: list[str] = []
        self.refusal = ""

    def _forget_shapes(self) -> None:
        self.forms: dict[bytes, _Form] = {}
        self.shapes: dict[bytes, _Shape] = {}
        self.dull: dict[bytes, _Shape] = {}  # those of which only the last lines are looked at

    def feed(self, block: bytes) -> None:
        """Read BLOCK, which is whole lines."""
        for starts_again, part in _split_at_starts(block):
            if starts_again:
                self._forget()
            self._read_part(part)

    def end(self) -> LogReading:
        """Return what was read."""
        found = sorted(self.found.values(), key=lambda one: (-one.signature.rank, one.number))
        return LogReading(
            failure=self.failure,
            found=tuple(found),
            suspects=(*self.suspects[True], *self.suspects[False]),
            step_ends=self.step_ends,
            rank_ends=self.rank_ends,
            pip_ran=self.pip_ran,
            ranks="\n".join(self.ranks),
            refusal=self.refusal,
        )

    def _read_part(self, part: bytes) -> None:
        """Read PART of a block, in which the job starts again in its first line at most."""
        self.lines, self.continued, self.drawn_over = _split_lines(part)
        shapes = b"\n".join(self.lines).translate(DIGITS).split(b"\n") if self.lines else []
        if len(self.shapes) > SHAPES:
            self._forget_shapes()
        new = set(shapes) - self.shapes.keys()
        if new:
            backwards = zip(range(len(shapes) - 1, -1, -1), reversed(shapes), strict=True)
            self._learn({shape: index for index, shape in backwards if shape in new})

        lines = self.lines
        for index, shape in enumerate(shapes):
            dull = self.dull.get(shape)
            if self.drawn_over and index in self.drawn_over:
                self._search_line(index, shape)
            elif dull and not (self.failure.inside or self.is_answering):
                dull.last[lines[index][dull.begin : dull.end]] = index
            else:
                self._read_line(index, shape)
        self._feed_last()
        self.before += len(lines) - len(self.continued)

    def _learn(self, first: dict[bytes, int]) -> None:
        """Find out what shapes may say of which the FIRST lines, by their index, are in this block."""
        forms = {shape: _fold_names(shape) for shape in first}
        new = {form: shape for shape, form in forms.items() if form not in self.forms}
        signatures = _find_signatures(list(new.values()))
        # A label that is learnt here is one of the lines behind it, and not of those before.
        labels = self.failure.labels.copy()
        for shape, index in sorted(first.items(), key=lambda item: item[1]):
            line = self.lines[index].decode("utf-8", "replace")
            # A label is ASCII, so that its places are the same in bytes.
            begin, end, own = labels.locate(line)
            form = forms[shape]
            if form not in self.forms:
                known = signatures.get(new[form], ())
                self.forms[form] = self._learn_form(index, line, line[own:], known)
            about = self.forms[form]
            self.shapes[shape] = _Shape(
                about.tells_of_an_end, about.signatures, begin, end, self.last[about.kind]
            )
            if not about.tells_of_an_end and not about.signatures:
                self.dull[shape] = self.shapes[shape]

    def _learn_form(
        self, index: int, line: str, said: str, signatures: tuple[Signature, ...]
    ) -> _Form:
        """Return what lines of the form of LINE may say; keep what LINE tells besides."""
        self._look_for_marks(index, line, said)
        tells = may_say_how_it_ended(said) or ASKED in said
        kind = 2 * bool(NO_REASON.search(said)) + is_of_an_end(said)
        return _Form(tells, signatures, kind)

    def _look_for_marks(self, index: int, line: str, said: str) -> None:
        """Keep what LINE, the first of its shape, tells besides. SAID is it without labels."""
        if OF_PIP.match(said):
            self.pip_ran = True
        if ENDS.match(line) or ENDS.match(said):
            self.step_ends = min(self.step_ends, self._number(index))
        if said.startswith(REFUSAL) and not self.refusal:
            self.refusal = self._read_refusal(index, said)
        if all(len(known) >= MOST_LOOKED_AT for known in self.suspects.values()):
            return
        is_strong = bool(STRONG.search(line, 0, LONGEST))
        if not is_strong and not WEAK.search(line, 0, LONGEST):
            return
        suspects = self.suspects[is_strong]
        if len(suspects) < MOST_LOOKED_AT and not (_is_harmless(said) or _is_an_echo(said)):
            suspects.append(Suspect(line[:LONGEST].strip(), self._number(index), is_strong))

    def _read_refusal(self, index: int, said: str) -> str:
        """Return what hpcstack has SAID in the line at INDEX, and what to do; empty if others have."""
        out = [said.removeprefix(REFUSAL)]
        for line in self.lines[index + 1 : index + 1 + len(ADVICE)]:
            advice = line.decode("utf-8", "replace")
            if not advice.startswith(ADVICE):
                break
            out.append(advice)
        return "\n".join(out) if len(out) > 1 else ""

    def _number(self, index: int) -> int:
        """Return the number of the line at INDEX, as editors count."""
        return self.before + index + 1 - bisect.bisect_right(self.continued, index)

    def _search_line(self, index: int, shape: bytes) -> None:
        """Search the line at INDEX, whose shape is SHAPE, for known messages alone."""
        if shape not in self.shapes:
            self._learn({shape: index})
        signatures = self.shapes[shape].signatures
        if signatures:
            self._search(self.lines[index].decode("utf-8", "replace"), index, signatures)

    def _read_line(self, index: int, shape: bytes) -> None:
        """Read the line at INDEX, whose shape is SHAPE."""
        if shape not in self.shapes:  # what was known was forgotten since the block began
            self._learn({shape: index})
        known = self.shapes[shape]
        raw = self.lines[index]
        speaker = raw[known.begin : known.end]
        line = raw.decode("utf-8", "replace")
        self._keep_answer(line)
        if known.signatures:
            self._search(line, index, known.signatures)
        if known.tells_of_an_end or speaker.decode("utf-8", "replace") in self.failure.inside:
            self._read_end(line, index)
        else:
            known.last[speaker] = index

    def _read_end(self, line: str, index: int) -> None:
        """Let the failure have LINE, which is that at INDEX, and what came before it."""
        self._feed_last()
        before = self.failure.line
        labels = len(self.failure.labels.others)
        self.failure.feed(line)
        if self.failure.line not in ("", before):
            self.rank_ends = self._number(index)
        if len(self.failure.labels.others) != labels:
            self._forget_shapes()  # what was known for none is a label from here on

    def _keep_answer(self, line: str) -> None:
        """Keep LINE if it is of what the ranks answer to the watchdog."""
        if ASKED in line:
            self.ranks = []
            self.is_answering = True
        if self.is_answering:
            self.ranks.append(line)
        if ANSWERED in line or len(self.ranks) > MOST_OF_RANKS:
            self.is_answering = False

    def _feed_last(self) -> None:
        """Let the failure have the last dull lines, in their order."""
        indexes = sorted(index for last in self.last for index in last.values())
        for last in self.last:
            last.clear()
        for index in indexes:
            self.failure.feed(self.lines[index].decode("utf-8", "replace"))

    def _search(self, line: str, index: int, signatures: tuple[Signature, ...]) -> None:
        """Search LINE, which is that at INDEX, for SIGNATURES."""
        if _is_harmless(line):
            return
        for signature in signatures:
            match = _match(signature, line)
            if not match:
                continue
            known = self.found.get(signature.id)
            if known:
                self.found[signature.id] = replace(known, count=known.count + 1)
            else:
                number = self._number(index)
                self.found[signature.id] = make_known_failure(signature, match, number)


def _split_at_starts(block: bytes) -> Iterator[tuple[bool, bytes]]:
    """Yield BLOCK in parts, each with whether the job starts again in its first line."""
    if not any(word in block for word in MAY_START):
        yield False, block
        return
    labels = Labels()
    begin = at = 0
    starts_again = False
    for line in io.BytesIO(block):  # not splitlines: a drawing over itself ends no line
        said = labels.split(line.decode("utf-8", "replace").rstrip("\r\n"))[1]
        if STARTED_AGAIN.match(find_message(said)):
            if at > begin:
                yield starts_again, block[begin:at]
            begin = at
            starts_again = True
        at += len(line)
    yield starts_again, block[begin:]


def _split_lines(part: bytes) -> tuple[list[bytes], list[int], set[int]]:
    """Return (the lines of PART, the indexes of those that go on with the line before, of those that
    were drawn over).

    What was drawn over is a line, too, and a very long line is several.
    """
    lines = part.split(b"\n")
    if not lines[-1]:
        lines.pop()
    odd: list[int] = []
    if b"\r" in part or max(map(len, lines), default=0) > PIECE:
        odd = [at for at, line in enumerate(lines) if b"\r" in line or len(line) > PIECE]

    out: list[bytes] = []
    continued: list[int] = []
    drawn_over: set[int] = set()
    done = 0
    for at in odd:
        out += lines[done:at]
        done = at + 1
        drawings = list(filter(None, lines[at].split(b"\r"))) or [b""]
        last = drawings.pop()
        pieces = [last[begin : begin + PIECE] for begin in range(0, max(len(last), 1), PIECE)]
        drawn_over.update(range(len(out), len(out) + len(drawings)))
        continued += range(len(out) + 1, len(out) + len(drawings) + len(pieces))
        out += [drawing[:PIECE] for drawing in drawings] + pieces
    out += lines[done:]
    return out, continued, drawn_over


def _fold_names(shape: bytes) -> bytes:
    """Return SHAPE with each name of hexadecimal digits, such as a request's, as one 0."""
    return HEXADECIMAL.sub(b"0", shape)


@cache
def _list_needles() -> tuple[tuple[bytes, bytes, Signature], ...]:
    """Return (a literal with each digit as a 0, the longest word of it, its signature) of all."""
    out = []
    for signature in read_signatures():
        for literal in signature.literals:
            needle = literal.encode().translate(DIGITS)
            words = needle.translate(LETTERS).split()
            out.append((needle, max(words, key=len, default=b""), signature))
    return tuple(out)


def _find_signatures(shapes: list[bytes]) -> dict[bytes, tuple[Signature, ...]]:
    """Return {shape: the signatures of which it has a literal} of those SHAPES that have one."""
    text = b"\n".join(shapes).lower()
    begins = [0, *itertools.accumulate(len(shape) + 1 for shape in shapes)]
    # Most words repeat themselves, and most signatures are found to be absent by them alone.
    words = b"\n".join(set(text.translate(LETTERS).split()))
    found: dict[bytes, dict[str, Signature]] = {}
    for needle, word, signature in _list_needles():
        if word not in words:
            continue
        at = text.find(needle)
        while at >= 0:
            index = bisect.bisect_right(begins, at) - 1
            found.setdefault(shapes[index], {})[signature.id] = signature
            at = text.find(needle, begins[index + 1])
    return {shape: tuple(ones.values()) for shape, ones in found.items()}


def _match(signature: Signature, line: str) -> re.Match[str] | None:
    """Return where SIGNATURE's pattern is in LINE; of a very long line, only near its literals."""
    if len(line) <= LONGEST:
        return signature.pattern.search(line)
    small = line.lower()
    for literal in signature.literals:
        at = small.find(literal)
        if at < 0:
            continue
        near = max(0, at - LONGEST // 2)
        match = signature.pattern.search(line[near : near + LONGEST])
        if match:
            return match
    return None


def _is_an_echo(said: str) -> bool:
    """Whether SAID, a line, only reports that a task has ended."""
    return said.startswith("hpcstack: ") or bool(TASK.match(said) or ENDS.match(said))


def _is_harmless(said: str) -> bool:
    """Whether SAID, a line, reads like a failure and is none."""
    return any(pattern.fullmatch(said) for pattern in read_harmless())
