"""The runner: the one place that starts programs.

It is passed in as an argument, so that a test hands over its own and need not patch `subprocess`.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import functools
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from hpcstack import OWN_VARIABLES
from hpcstack.core.descriptors import list_pins
from hpcstack.core.errors import BuildError, MissingToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# Which package brings a program, for the message that says it is missing.
PACKAGES = {
    "apptainer": "apptainer (https://apptainer.org/docs/admin/latest/installation.html)",
    "unsquashfs": "squashfs-tools",
    "mksquashfs": "squashfs-tools",
    "srun": "slurm-client",
    "sinfo": "slurm-client",
    "luac": "lua5.3",
    "tar2sqfs": "squashfs-tools-ng",
    "sqfs2tar": "squashfs-tools-ng",
    "podman": "podman",
    "ch-run": "charliecloud",
    "enroot": "enroot (https://github.com/NVIDIA/enroot)",
    "unshare": "util-linux",
}
STARTS_STEPS = ("srun", "salloc", "sbatch")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TAIL = 20  # lines of a program's output that are kept for a message
PIPE = 1 << 20  # bytes of a pipe: the most that an ordinary user may ask for (pipe(7))
RELEASE_S = 0.5  # how often a reader of stderr is asked for what it has held back
LINE = 1 << 16  # characters of a line that are read at once
LOG_CHARACTERS = 256 << 20  # characters of a program's output that its log takes
# Looked up now: between fork and exec nothing may be loaded.
PRCTL = getattr(ctypes.CDLL(None), "prctl", None)


@dataclass(frozen=True)
class Completed:
    """A program that has ended.

    STATUS is its exit status (-N where signal N ended it). TAIL are the last lines of its output;
    from `Runner.output` they are all lines, and STDOUT is its standard output, else empty.
    """

    argv: tuple[str, ...]
    status: int
    tail: tuple[str, ...] = ()
    stdout: str = ""

    def command(self) -> str:
        """Return its command line, quoted for a shell."""
        return shlex.join(self.argv)


class ReadFailed(BuildError):
    """A program that was read has failed; `said` are its last lines of stderr."""

    def __init__(self, message: str, said: tuple[str, ...]) -> None:
        super().__init__(message)
        self.said = said


@dataclass(frozen=True)
class Fed:
    """A running program that reads what is written to DESCRIPTOR."""

    descriptor: int
    argv: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: Path

    def finish(self) -> Completed:
        """Close its input, and wait until it ends."""
        assert self.process.stdin
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        status = self.process.wait()
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return Completed(self.argv, status, tuple(lines[-TAIL:]))


class Runner:
    """Starts programs from an argv, never through a shell."""

    def which(self, tool: str) -> str:
        """Return the path of TOOL. Raise MissingToolError, which names the package to install."""
        path = shutil.which(tool)
        if path is None:
            package = PACKAGES.get(tool, tool)
            page = "choose-a-runtime" if tool in STARTS_STEPS else ""
            raise MissingToolError(
                f"{tool} is not installed, or not on PATH", f"install {package}", page=page
            )
        return path

    def has(self, tool: str) -> bool:
        """Return whether TOOL is on PATH."""
        return shutil.which(tool) is not None

    def output(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        stdin: Path = Path(os.devnull),
    ) -> Completed:
        """Run ARGV to its end, with the file STDIN as its input.

        `tail` of the result has all lines: those of stdout, then those of stderr. The
        status is 124 for no end within TIMEOUT seconds, 126 for what could not be started.
        """
        self.which(argv[0])

        try:
            with stdin.open("rb") as given:
                done = subprocess.run(
                    argv,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    env=_make_environment(env),
                    timeout=timeout,
                    stdin=given,
                    check=False,
                    pass_fds=list_pins(argv),
                )
        except subprocess.TimeoutExpired:
            return Completed(tuple(argv), 124, (f"no answer within {timeout:.0f} s",))
        # Not a program, its interpreter is missing, or STDIN cannot be opened.
        except OSError as error:
            return Completed(tuple(argv), 126, (f"{argv[0]}: {error.strerror}",))

        lines = (done.stdout + done.stderr).splitlines()
        return Completed(tuple(argv), done.returncode, tuple(lines), done.stdout)

    def logged(
        self,
        argv: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        keep: tuple[int, ...] = (),
        clean: bool = False,
    ) -> Completed:
        """Run ARGV with all its output appended to LOG; call ON_LINE with each line.

        The program inherits the descriptors KEEP. With CLEAN it gets none of our variables but
        PATH. It and what it starts are one process group, which is ended if the caller is
        interrupted.
        """
        self.which(argv[0])
        tail: collections.deque[str] = collections.deque(maxlen=TAIL)
        with (
            log.open("a", encoding="utf-8") as sink,
            _start_group(argv, _make_environment(env, clean=clean), cwd, keep) as process,
        ):
            sink.write(f"> {shlex.join(argv)}\n")
            assert process.stdout is not None
            output = process.stdout
            room = LOG_CHARACTERS

            # A program may write a line, or a log, without end: both are bounded.
            for line in iter(lambda: output.readline(LINE), ""):
                room -= len(line)
                if room > 0:
                    sink.write(line)
                    sink.flush()
                tail.append(line.rstrip("\n"))
                if on_line:
                    on_line(line.rstrip("\n"))

            status = process.wait()
        return Completed(tuple(argv), status, tuple(tail))

    @contextlib.contextmanager
    def fed(
        self,
        argv: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        wait: bool = True,
        clean: bool = False,
    ) -> Iterator[Fed]:
        """Run ARGV, which reads what the caller writes; its output is appended to LOG.

        Its input is closed at the end of the block. Without WAIT nobody waits for what it does
        then. If the block raises, it is killed. With CLEAN it gets none of our variables but PATH.
        """
        self.which(argv[0])
        with log.open("ab") as sink:
            sink.write(f"> {shlex.join(argv)}\n".encode())
            sink.flush()
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=subprocess.STDOUT,
                bufsize=0,
                env=_make_environment(env, clean=clean),
                start_new_session=True,
                preexec_fn=_end_with_parent,
                pass_fds=list_pins(argv),
            )

        assert process.stdin
        with contextlib.suppress(OSError, AttributeError):  # it is only for speed
            fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, PIPE)

        try:
            yield Fed(process.stdin.fileno(), tuple(argv), process, log)
        except BaseException:
            process.kill()
            wait = True
            raise
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()
            if wait:
                process.wait()

    @contextlib.contextmanager
    def read(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, held: bool = False
    ) -> Iterator[IO[bytes]]:
        """Run ARGV, and yield its standard output to be read.

        Its standard input is empty; if it is HELD, it stays open until the end of the block. Raise
        ReadFailed, with its last lines of stderr, if it fails in the end.
        """
        self.which(argv[0])
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if held else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                env=_make_environment(env),
                bufsize=0,
                start_new_session=True,
                preexec_fn=_end_with_parent,
                pass_fds=list_pins(argv),
            )
            assert process.stdout
            with contextlib.suppress(OSError, AttributeError):  # it is only for speed
                fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE)

            try:
                yield process.stdout
            except BaseException:
                process.kill()
                process.wait()
                raise
            finally:
                process.stdout.close()
                if process.stdin:
                    process.stdin.close()

            status = process.wait()
            if status:
                said.seek(0)
                tail = said.read().decode(errors="replace").splitlines()[-TAIL:]
                failed = f"{shlex.join(argv)} failed (exit {status})"
                raise ReadFailed("\n".join([failed, *tail]), tuple(tail))

    def attached(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        meanwhile: Callable[[], None] | None = None,
        errors: ErrorReader | None = None,
        ending: Ending | None = None,
        is_script: bool = False,
        apart: bool = False,
    ) -> int:
        """Run ARGV on the caller's own terminal; return its status, 128 + N for an end by signal N.

        Ctrl-C on a terminal reaches the program itself; a signal that is sent to us alone is passed
        on to it as a TERM. With ENDING, that answers every signal, wherever it comes from. If we
        are killed, the kernel sends the program a TERM; otherwise we wait for its end.

        MEANWHILE is called while the program starts; if that raises, the program is ended. ERRORS
        reads what the program writes to stderr, and decides what of it goes to ours. With IS_SCRIPT
        a TERM also goes to what the program has started. APART puts it into a session of its own,
        so that who kills our process group leaves it the TERM.
        """
        self.which(argv[0])
        stderr = subprocess.PIPE if errors else None
        process = subprocess.Popen(
            argv,
            env=_make_environment(env),
            preexec_fn=_end_with_parent,
            stderr=stderr,
            start_new_session=apart,
        )
        reader = None
        if errors:
            # In a thread of its own: who waits for the program reads nothing meanwhile.
            reader = threading.Thread(target=_pass_on, args=(process.stderr, errors), daemon=True)
            reader.start()

        ends = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup(1) leaves it
            ends.append(signal.SIGHUP)
        handlers = {number: signal.getsignal(number) for number in ends}
        try:
            terminate: Callable[[], None] = process.terminate
            if is_script:
                terminate = functools.partial(_terminate_tree, process)

            def end(_number: int, _frame: object) -> None:
                terminate()

            answer = _answer_with(ending, terminate) if ending else end
            for number in ends:
                signal.signal(number, answer)
            if not ending and _on_terminal():  # the terminal sends Ctrl-C to the program as well
                signal.signal(signal.SIGINT, signal.SIG_IGN)

            try:
                if meanwhile:
                    meanwhile()
            except BaseException:
                process.terminate()
                process.wait()
                raise
            status = process.wait()
            if reader:
                reader.join(5)  # no longer: what the program left running may hold the other end
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return status if status >= 0 else 128 - status


class ErrorReader(Protocol):
    """Reads what a program writes to its stderr, and decides what the user sees of it."""

    def feed(self, data: bytes) -> bytes:
        """Take DATA, which has come; return what is to be shown now."""

    def release(self) -> bytes:
        """Return what was held back and is to be shown now; called when nothing has come lately."""


class Ending(Protocol):
    """Knows how to end a program well when a signal comes."""

    def answer(self, number: signal.Signals, terminate: Callable[[], None]) -> None:
        """End the program now that signal NUMBER has come, however long that takes.

        TERMINATE ends it at once.
        """


def _answer_with(ending: Ending, terminate: Callable[[], None]) -> Callable[[int, object], None]:
    """Return a signal handler that lets ENDING answer, in a thread, since that takes its time."""

    def end(number: signal.Signals) -> None:
        try:
            ending.answer(number, terminate)
        except Exception:  # whatever goes wrong there, the program has to end
            terminate()

    def answer(number: int, _frame: object) -> None:
        threading.Thread(target=end, args=(signal.Signals(number),), daemon=True).start()

    return answer


def _terminate_tree(process: subprocess.Popen[bytes]) -> None:
    """Send TERM to PROCESS and to all that it has started.

    A shell that waits for a program does not end before that program does.
    """
    below = _processes_below(process.pid)
    process.terminate()
    for pid in below:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)


def _processes_below(pid: int) -> list[int]:
    """Return the process ids of what PID has started, and of what those have started."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, path.read_text().split()):
                found += [child, *_processes_below(child)]
    return found


def _pass_on(source: IO[bytes], errors: ErrorReader) -> None:
    """Hand what comes from SOURCE to ERRORS, and write what that returns to our stderr."""
    while True:
        ready, _, _ = select.select([source], [], [], RELEASE_S)
        data = os.read(source.fileno(), 1 << 16) if ready else b""
        if ready and not data:
            return
        shown = data
        with contextlib.suppress(Exception):  # whatever goes wrong there, the text is passed on
            shown = errors.feed(data) if ready else errors.release()
        write_stderr(shown)


def write_stderr(data: bytes) -> None:
    """Write all of DATA to our stderr. Do nothing where nobody reads it any more."""
    with contextlib.suppress(OSError):
        sys.stderr.flush()
        left = memoryview(data)
        while left:
            left = left[os.write(2, left) :]


def _on_terminal() -> bool:
    """Return whether we are in a terminal's foreground: our children get its Ctrl-C, too."""
    with contextlib.suppress(OSError):
        return os.tcgetpgrp(0) == os.getpgrp()
    return False


def _end_with_parent() -> None:
    """Ask the kernel to send us a TERM when our parent dies.

    It runs in the child, before exec: without it, what a killed build had started would go on.
    """
    if PRCTL:
        PRCTL(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, prctl(2)


def _make_environment(extra: Mapping[str, str] | None, *, clean: bool = False) -> dict[str, str]:
    """Return a program's environment: ours without hpcstack's own variables, then EXTRA.

    With CLEAN: of ours only PATH, with the system's folders behind it; then LC_ALL=C.UTF-8 and
    EXTRA.
    """
    if clean:
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), SYSTEM_PATH])
        return {"PATH": path, "LC_ALL": "C.UTF-8", **(extra or {})}
    inherited = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
    return {**inherited, **(extra or {})}


@contextlib.contextmanager
def _start_group(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path | None, keep: tuple[int, ...]
) -> Iterator[subprocess.Popen[str]]:
    """Start ARGV as a process group of its own; end the whole group if the block raises."""
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env=env,
        cwd=cwd,
        start_new_session=True,
        preexec_fn=_end_with_parent,
        pass_fds=(*keep, *list_pins(argv)),
    )
    try:
        yield process
    except BaseException:
        for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(seconds)
        raise
