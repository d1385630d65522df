"""The lines of a log as their programs wrote them: decoded, without a terminal's commands, and without
what others have put in front to say whose they are. Pure.

launchers/jobs/failure.awk takes the same labels off, from the same table: `make_awk_labels` writes it.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field

# What terminals take for commands: CSI and OSC sequences
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b\n]*\x07")
MOST_LABELS = 6  # before one line


@dataclass(frozen=True)
class Label:
    """What WHO puts before each line, as an extended regular expression of POSIX without {}: not every awk has them.

    Lines with the same label are one speaker's. `is_rank` says that the last number in it is the
    rank's, `is_shared` that it tells no speakers apart, as a time.
    """

    who: str
    pattern: str
    is_rank: bool = False
    is_shared: bool = False


_TWO = "[0-9][0-9]"
LABELS = (
    Label("torch", r"\[rank[0-9]+\]: ?", is_rank=True),
    Label("torchrun --tee", r"\[default[0-9]+\]:"),
    Label("srun --label", " *[0-9]+: ", is_shared=True),
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
# pdsh and others put a host's name before each line. A name is known for such a label by a line that
# nobody begins with one himself: the head of a traceback.
HOST = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*): (?=Traceback [(]most recent call last[)]:)")
# Whether a line has a label at all: most have none, and a log may have millions of lines
_ANY = re.compile("|".join(f"(?:{label.pattern})" for label in LABELS))
_COMPILED = tuple((label, re.compile(label.pattern)) for label in LABELS)


def decode_log(data: bytes) -> str:
    """Return DATA, a log, as text: UTF-8, or UTF-16 where it says so or is full of NULs."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    head = data[:4096]
    if len(head) > 1 and head[1::2].count(0) > len(head) // 3:
        return data.decode("utf-16-le", "replace")
    return data.removeprefix(codecs.BOM_UTF8).replace(b"\0", b"").decode("utf-8", "replace")


@dataclass
class Labels:
    """Takes labels off the lines of one log, in their order; `hosts` are those it has come to know."""

    hosts: set[str] = field(default_factory=set)

    def split(self, line: str) -> tuple[str, str]:
        """Return (whose LINE is, what they wrote); empty where nothing says whose it is.

        Of a line that was drawn over itself, as a progress bar, the last drawing counts.
        """
        if "\x1b" in line:
            line = ESCAPES.sub("", line)
        if "\r" in line:
            line = line.rstrip("\r").rpartition("\r")[2]
        speaker = ""
        for _ in range(MOST_LABELS):
            taken, own = self._take_label(line)
            if not taken:
                break
            line = line[len(taken) :]
            speaker = own or speaker
        return speaker, line

    def _take_label(self, line: str) -> tuple[str, str]:
        """Return (the label that LINE begins with, the speaker that it names); empty for none."""
        for label, pattern in _COMPILED if _ANY.match(line) else ():
            found = pattern.match(line)
            if not found:
                continue
            if label.is_shared:
                return found[0], ""
            if label.is_rank:
                return found[0], re.findall(r"\d+", found[0])[-1]
            return found[0], found[0].rstrip(" :")
        host = HOST.match(line) if "Traceback" in line else None
        if host:
            self.hosts.add(host[1])
        name = line.partition(": ")[0] if self.hosts else ""
        if name in self.hosts:
            return f"{name}: ", name
        return "", ""


def make_awk_labels() -> str:
    """Return the table for awk: each pattern, and of which kind it is."""
    lines = []
    for number, label in enumerate(LABELS, 1):
        kind = "own"
        if label.is_rank:
            kind = "rank"
        elif label.is_shared:
            kind = "shared"
        pattern = label.pattern.replace("\\", "\\\\")
        lines.append(f'    LABEL[{number}] = "^{pattern}"; KIND[{number}] = "{kind}"')
    return "\n".join([*lines, f"    LABELS = {len(LABELS)}; MOST_LABELS = {MOST_LABELS}"])
