"""The lines of a log as their programs wrote them: decoded, without a terminal's commands, and without
what others have put in front to say whose they are.

launchers/jobs/failure.awk takes the same labels off, from the same table: `make_awk_labels` writes it.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What terminals take for commands: CSI and OSC sequences
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b\n]{0,4096}\x07")
_ESCAPES = re.compile(ESCAPES.pattern.encode())
# All other control characters but tabs and the ends of lines
_CONTROL = bytes({*range(0x20), 0x7F} - {*b"\t\n\r"})
BLOCK = 4 << 20  # bytes that are read at once
MOST_LABELS = 6  # before one line


@dataclass(frozen=True)
class Label:
    """What WHO puts before each line, as an extended regular expression of POSIX without {}: not every awk has them.

    Lines with the same label are one speaker's. `is_rank` says that the last number in it is the
    rank's, `is_task` that it is a task's, whose name ends with a colon: 3:. `is_shared` says that the
    label tells no speakers apart, as a time.
    """

    who: str
    pattern: str
    is_rank: bool = False
    is_task: bool = False
    is_shared: bool = False


_TWO = "[0-9][0-9]"
LABELS = (
    Label("torch", r"\[rank[0-9]+\]: ?", is_rank=True),
    Label("torchrun --tee", r"\[default[0-9]+\]:"),
    Label("srun --label", " *[0-9]+: ", is_task=True),
    Label("mpirun --tag-output", r"\[[0-9]+,[0-9]+\]<std(out|err|diag)>: ?", is_rank=True),
    Label("Ray", r"\([A-Za-z_][A-Za-z0-9_.:]* pid=[0-9]+(, ip=[0-9a-fA-F.:]+)?\) "),
    Label("kubectl logs --prefix", r"\[pod/[^] ]+\] "),
    Label("foreman", f"{_TWO}:{_TWO}:{_TWO} [A-Za-z0-9_.-]+ +[|] ", is_shared=True),
    Label(
        "times",
        f"{_TWO}{_TWO}-{_TWO}-{_TWO}T{_TWO}:{_TWO}:{_TWO}([.,][0-9]+)?(Z|[+-]{_TWO}:?{_TWO})? ",
        is_shared=True,
    ),
    Label("ts", f"[A-Z][a-z][a-z] [ 0-9][0-9] {_TWO}:{_TWO}:{_TWO} ", is_shared=True),
)
# What else stands before the head of a traceback, and again before its frames, is a label, too: a host's
# name of pdsh, a pod's, a time, a level of logging. Only of such signs.
HEAD, FRAME = "Traceback (most recent call last):", '  File "'
OTHER = re.compile(r"[A-Za-z0-9 _.,:;/|()<>=@#+*\[\]{}-]{2,160}")
# Of a label, a time and a level of logging tell no speakers apart, nor does what stands before them.
TIME = re.compile(
    r"(?:[0-9][0-9]+[-/][0-9][0-9](?:[-/][0-9][0-9]+)?[T ]+)?[0-9][0-9]?:[0-9][0-9]:[0-9][0-9]"
    r"(?:[.,][0-9]+)?Z?"
)
_LEVELS = "TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL"
LEVEL = re.compile(f"(?:{_LEVELS}) *")
MOST_OTHERS = 20  # forms of such labels in one log
# Whether a line has a label at all: most have none, and a log may have millions of lines
_ANY = re.compile("|".join(f"(?:{label.pattern})" for label in LABELS))
_NUMBER = re.compile(r"\d+")
_COMPILED = tuple((label, re.compile(label.pattern)) for label in LABELS)


def open_log(path: Path) -> IO[bytes]:
    """Open the log at PATH.

    The job's user chose PATH, and root may ask: what is no file, such as a pipe, is not waited for.
    Raise InputError for it, OSError where PATH cannot be opened.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise InputError(f"{path} is not an ordinary file", f"hpcstack explain - < {path} reads a pipe")


def read_log_blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield FILE, a log, in blocks of whole lines: as UTF-8, without what controls a terminal.

    Of a line that is longer than a block there are several, cut where it was drawn over itself.
    """
    chunk = file.read(BLOCK)
    encoding = _find_encoding(chunk)
    decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
    chunk = chunk.removeprefix(codecs.BOM_UTF8)
    rest = b""
    while chunk:
        rest += decoder.decode(chunk).encode("utf-8", "replace") if decoder else chunk
        end = rest.rfind(b"\n") + 1
        if not end and len(rest) > BLOCK:
            end = rest.rfind(b"\r") + 1 or len(rest)
        if end:
            yield _clean(rest[:end])
            rest = rest[end:]
        chunk = file.read(BLOCK)
    if rest:
        yield _clean(rest)


def _find_encoding(head: bytes) -> str:
    """Return the encoding of a log that begins with HEAD; empty for UTF-8.

    It is UTF-16 where the log says so, or is full of NULs.
    """
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    head = head[:4096]
    # Of a hole in the file all bytes are 0.
    if (
        len(head) > 1
        and head[1::2].count(0) > len(head) // 3
        and head[::2].count(0) < len(head) // 6
    ):
        return "utf-16-le"
    return ""


def _clean(block: bytes) -> bytes:
    if b"\x1b" in block:
        block = _ESCAPES.sub(b"", block)
    return block.replace(b"\r\n", b"\n").translate(None, _CONTROL)


@dataclass
class Labels:
    """Takes labels off the lines of one log, in their order.

    `others` are the forms of labels that it has come to know, {with each number as a 0, and each level as
    LEVEL: its pattern}, and `pending` are the forms of what stood before heads of tracebacks.
    """

    others: dict[str, re.Pattern[str]] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)

    def copy(self) -> Labels:
        """Return these labels for another reader of the same log."""
        return Labels(dict(self.others), set(self.pending))

    def split(self, line: str) -> tuple[str, str]:
        """Return (whose LINE is, what they wrote); empty where nothing says whose it is.

        Of a line that was drawn over itself, as a progress bar, the last drawing counts.
        """
        if "\x1b" in line:
            line = ESCAPES.sub("", line)
        if "\r" in line:
            line = line.rstrip("\r").rpartition("\r")[2]
        begin, end, own = self.locate(line)
        return line[begin:end], line[own:]

    def locate(self, line: str) -> tuple[int, int, int]:
        """Return where in LINE its speaker's name begins and ends, and where what they wrote begins.

        The name is empty where nothing says whose LINE is.
        """
        begin = end = at = 0
        for _ in range(MOST_LABELS):
            found = self._find_label(line, at)
            if found is None:
                break
            at, name = found
            begin, end = name or (begin, end)
        return begin, end, at

    def _find_label(self, line: str, at: int) -> tuple[int, tuple[int, int] | None] | None:
        """Return (where the label ends that LINE has at AT, the span of the speaker that it names).

        None where it has none there; no span where the label tells no speakers apart.
        """
        for label, pattern in _COMPILED if _ANY.match(line, at) else ():
            found = pattern.match(line, at)
            if not found:
                continue
            if label.is_shared:
                return found.end(), None
            if label.is_rank:
                return found.end(), list(_NUMBER.finditer(line, at, found.end()))[-1].span()
            if label.is_task:
                return found.end(), (found.end() - len(found[0].lstrip()), found.end() - 1)
            return found.end(), (at, at + len(found[0].rstrip(" :")))
        self._learn(line, at)
        for pattern in self.others.values():
            found = pattern.match(line, at)
            if found:
                return found.end(), _find_name(found[0], at)
        return None

    def _learn(self, line: str, at: int) -> None:
        """Learn a label from LINE, from AT on, if it is a frame behind what stood before the head."""
        if HEAD in line:
            before = line[at : line.index(HEAD, at)] if HEAD in line[at:] else ""
            if OTHER.fullmatch(before) and len(self.pending) < MOST_OTHERS:
                self.pending.add(_form_of(before))
        elif self.pending and FRAME in line[at:]:
            before = line[at : line.index(FRAME, at)]
            form = _form_of(before)
            # The margin of a group of exceptions has no letter and no digit.
            has_a_name = any(sign.isalnum() for sign in form)
            if form in self.pending and has_a_name and len(self.others) < MOST_OTHERS:
                pattern = re.escape(form).replace("0", "[0-9]+")
                self.others[form] = re.compile(pattern.replace("LEVEL", LEVEL.pattern))


def _form_of(label: str) -> str:
    """Return LABEL with each number as a 0 and each level of logging as LEVEL."""
    return LEVEL.sub("LEVEL", _NUMBER.sub("0", label))


def _find_name(label: str, at: int) -> tuple[int, int] | None:
    """Return the span of the speaker's name in LABEL, which stands at AT; None where it has none."""
    begin = max((found.end() for one in (TIME, LEVEL) for found in one.finditer(label)), default=0)
    begin += len(label[begin:]) - len(label[begin:].lstrip(" ])|:"))
    end = len(label.rstrip(" :|"))
    return (at + begin, at + end) if begin < end else None


def make_awk_labels() -> str:
    """Return the table for awk: each pattern, and of which kind it is."""
    lines = []
    for number, label in enumerate(LABELS, 1):
        kind = "own"
        if label.is_rank:
            kind = "rank"
        elif label.is_task:
            kind = "task"
        elif label.is_shared:
            kind = "shared"
        pattern = label.pattern.replace("\\", "\\\\")
        lines.append(f'    LABEL[{number}] = "^{pattern}"; KIND[{number}] = "{kind}"')
    return "\n".join([*lines, f"    LABELS = {len(LABELS)}; MOST_LABELS = {MOST_LABELS}"])
