"""Runs a Python program below pdb, which one person at a time can talk to from elsewhere.

It stops before the program's first line, at each `breakpoint()`, and at an exception that nobody
caught. A client (in-image/debug_client.py) connects to a Unix socket as the same user; at each stop
the program waits for one. The socket lies in a folder that nobody else can enter, and whose name
ends in what nobody can guess: so nobody takes the name first, or fills the socket's queue.

Arguments: those of Python: FILE [ARGUMENTS]..., or with -m MODULE or -c CODE for FILE.

Needs Python 3.6, as images have it.
"""

import atexit
import builtins
import os
import pdb
import runpy
import shutil
import signal
import socket
import struct
import sys
import tempfile
import traceback
import types

RANK = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
JOB = os.environ.get("SLURM_JOB_ID", "")
STEP = os.environ.get("SLURM_STEP_ID", "0")
PROMPT = "(pdb) "
NAME = f"hpcstack-debug-{os.getuid()}-{JOB}.{STEP}-{RANK}."  # and what is drawn
PLACE = "/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir()


def accept_client(service):
    """Return a connection of this user's."""
    sys.stderr.write(
        f"hpcstack: rank {RANK} on {os.uname().nodename} waits for its debugger:"
        f" hpcstack enter {JOB} --rank {RANK} --debug\n"
    )
    sys.stderr.flush()
    while True:
        connected, _ = service.accept()
        size = struct.calcsize("3i")
        data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        if struct.unpack("3i", data)[1] == os.getuid():
            return connected
        connected.close()


class ClientStream:
    """What pdb reads and writes: a person's lines, whoever is connected at that moment."""

    encoding = "utf-8"

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix=NAME, dir=PLACE)
        self.process = os.getpid()
        atexit.register(self.remove)
        self.service = socket.socket(socket.AF_UNIX)
        self.service.bind(f"{self.folder}/socket")
        self.service.listen(1)
        self.lines = None
        self.connected = None
        self.said = ""  # kept for the next person where nobody listens

    def readline(self):
        """Return the next line that somebody typed. Wait for somebody where nobody is there."""
        while True:
            self.flush()
            line = self.lines.readline() if self.connected is not None else ""
            if line:
                return line
            self.leave()
            self.said = self.said or PROMPT  # the next one has not seen it

    def write(self, text):
        self.said += text

    def flush(self):
        """Say what is to be said, to whoever is there."""
        if self.connected is None:
            self.connected = accept_client(self.service)
            self.lines = self.connected.makefile("r", encoding="utf-8", errors="replace")
        try:
            self.connected.sendall(self.said.encode("utf-8", "backslashreplace"))
        except OSError:
            self.leave()
        else:
            self.said = ""

    def remove(self):
        """Remove the folder; not from a process that the program has forked."""
        if os.getpid() == self.process:
            shutil.rmtree(self.folder, ignore_errors=True)

    def close(self):
        """Close what another process goes on using."""
        self.leave()
        self.service.close()

    def leave(self):
        """Forget the one who has gone."""
        if self.connected is not None:
            self.lines.close()
            self.connected.close()
            self.connected = None


class Debugger(pdb.Pdb):
    """pdb on a socket. `q` ends the program."""

    def __init__(self, stream):
        super().__init__(stdin=stream, stdout=stream, nosigint=True)
        self.use_rawinput = False
        self.prompt = PROMPT
        self.was_left = False

    def set_quit(self):
        """End the program, which would catch pdb's own exception as any other."""
        self.was_left = True
        raise SystemExit(1)

    def trace_dispatch(self, frame, event, arg):
        """Trace no more after `c`: before Python 3.10, a frame would be traced once again."""
        local = super().trace_dispatch(frame, event, arg)
        return local if sys.gettrace() else None

    def stop(self, _number, frame):
        """Stop the program where a signal found it; it comes from a Ctrl-C at the debugger."""
        if self.allow_kbdint:
            raise KeyboardInterrupt
        sys.settrace(None)  # else it would stop inside pdb
        self.set_trace(frame)

    def stop_here_now(self, *_, **__):
        """Be `breakpoint()` of the program."""
        self.set_trace(sys._getframe(1))

    def leave_child(self):
        """Let a process that the program has forked run as it is."""
        sys.settrace(None)
        frame = sys._getframe()
        while frame:
            frame.f_trace = None
            frame = frame.f_back
        self.replace_breakpoint(lambda *_, **__: None)
        self.stdin.close()

    def replace_breakpoint(self, hook):
        """Make HOOK what breakpoint() and pdb.set_trace() call."""
        if sys.version_info < (3, 7):
            builtins.breakpoint = hook
        else:
            sys.breakpointhook = hook
        pdb.set_trace = hook

    def refuse(self, _arg):
        """Refuse a command that needs the terminal of the program, or starts it again."""
        self.error("not possible here")

    do_run = do_restart = do_interact = refuse


def load_program(argv):
    """Return (its code, the variables of its module) of the program ARGV.

    Set sys.argv, sys.path and the module __main__ as Python does.
    """
    module = types.ModuleType("__main__")
    module.__builtins__ = __builtins__
    if argv[0] == "-m":
        sys.path.insert(0, os.getcwd())
        _, spec, code = runpy._get_module_details(argv[1])  # as `python -m pdb -m` does
        module.__dict__.update(__file__=code.co_filename, __spec__=spec, __package__=spec.parent)
        sys.argv = [code.co_filename, *argv[2:]]
    elif argv[0] == "-c":
        sys.path.insert(0, "")
        code = compile(argv[1], "<string>", "exec")
        sys.argv = ["-c", *argv[2:]]
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(argv[0])))
        with open(argv[0], "rb") as file:
            code = compile(file.read(), os.path.abspath(argv[0]), "exec")
        module.__file__ = argv[0]
        sys.argv = argv
    sys.modules["__main__"] = module
    return code, module.__dict__


def main():
    """Run the program to its end, below the debugger."""
    if sys.path[:1] == [""]:
        sys.path.pop(0)  # of `python -c`
    code, variables = load_program(sys.argv[1:])
    debugger = Debugger(ClientStream())
    debugger.replace_breakpoint(debugger.stop_here_now)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=debugger.leave_child)
    signal.signal(signal.SIGINT, debugger.stop)
    try:
        debugger.run(code, variables)
    except SystemExit:
        raise
    except BaseException:
        text = traceback.format_exc()
        sys.stderr.write(text)
        debugger.stdout.write(text)
        debugger.reset()
        debugger.interaction(None, sys.exc_info()[2])
        sys.exit(1)
    if debugger.was_left:
        sys.exit(1)


main()
