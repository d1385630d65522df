"""Keep what a machine answered to the checks of a node, and answer the same again later.

So a verdict can be made again from the same texts by another version of the suite, on any machine.

Tested in tests/unit/suite/test_capsule.py.
"""

from __future__ import annotations

import re
from typing import Any

from hpcstack_smoke.node.machine import Machine

# Bytes of one answer that are kept: `nvidia-smi -q` of eight GPUs is 100 KB
MOST = 256 << 10
# Lines of the kernel's log that are kept: those of GPUs, adapters and their slots
OF_DEVICES = re.compile(r"NVRM|SXid|nvidia|mlx[45]|infiniband|efa|cxi|AER|EDAC|MCE", re.IGNORECASE)


class NotRecorded(Exception):
    """Raised where a check asks a recorded machine something that it was not asked then."""


class Recorder(Machine):
    """The machine BEHIND, each of whose answers is kept in `answers`: {question: {what: answer}}."""

    def __init__(self, behind: Machine) -> None:
        self.behind = behind
        self.answers: dict[str, dict[str, Any]] = {}

    def _keep(self, question: str, what: str, answer: Any) -> Any:
        kept = answer[:MOST] if isinstance(answer, str) else answer
        self.answers.setdefault(question, {})[what] = kept
        return answer

    def path(self, name: str) -> str:
        return self.behind.path(name)

    def line(self, name: str) -> str:
        return str(self._keep("line", name, self.behind.line(name)))

    def found(self, pattern: str) -> list[str]:
        return list(self._keep("found", pattern, self.behind.found(pattern)))

    def exists(self, name: str) -> bool:
        return bool(self._keep("exists", name, self.behind.exists(name)))

    def said(self, argv: list[str], seconds: float = 60.0) -> str:
        return str(self._keep("said", " ".join(argv), self.behind.said(argv, seconds)))

    def ran(self, argv: list[str], seconds: float) -> tuple[int, str]:
        status, text = self.behind.ran(argv, seconds)
        self._keep("ran", " ".join(argv), [status, text[:MOST]])
        return status, text

    def opens(self, name: str) -> bool:
        return bool(self._keep("opens", name, self.behind.opens(name)))

    def kernel_log(self, seconds: float) -> list[str]:
        try:
            lines = self.behind.kernel_log(seconds)
        except OSError as error:
            self._keep("kernel_log", f"{seconds:g}", [error.errno or 0])
            raise
        self._keep(
            "kernel_log", f"{seconds:g}", [line for line in lines if OF_DEVICES.search(line)]
        )
        return lines


class Replayed(Machine):
    """A machine that gives the ANSWERS of a Recorder again."""

    def __init__(self, answers: dict[str, dict[str, Any]]) -> None:
        self.answers = answers

    def _find(self, question: str, what: str) -> Any:
        try:
            return self.answers[question][what]
        except KeyError:
            raise NotRecorded(f"{question} {what}") from None

    def line(self, name: str) -> str:
        return str(self._find("line", name))

    def found(self, pattern: str) -> list[str]:
        return [str(one) for one in self._find("found", pattern)]

    def exists(self, name: str) -> bool:
        return bool(self._find("exists", name))

    def said(self, argv: list[str], seconds: float = 60.0) -> str:
        return str(self._find("said", " ".join(argv)))

    def ran(self, argv: list[str], seconds: float) -> tuple[int, str]:
        status, text = self._find("ran", " ".join(argv))
        return int(status), str(text)

    def opens(self, name: str) -> bool:
        return bool(self._find("opens", name))

    def kernel_log(self, seconds: float) -> list[str]:
        lines = self._find("kernel_log", f"{seconds:g}")
        if lines and isinstance(lines[0], int):
            raise OSError(lines[0], "as it was then")
        return [str(line) for line in lines]
