"""Runs a Python program below pdb, which one person at a time can talk to from elsewhere.

It stops before the program's first line, at each `breakpoint()`, and after an exception that nobody
caught. Whoever talks to it connects to an abstract Unix socket (in-image/debug_client.py), as the
same user; it waits for one where it stops.

Arguments: those of Python: [OPTIONS] FILE [ARGUMENTS]..., or with -m MODULE or -c CODE for FILE.

Needs Python 3.6, as images have it.
"""

import os
import pdb
import runpy
import socket
import struct
import sys
import traceback
import types

RANK = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
JOB = os.environ.get("SLURM_JOB_ID", "")
STEP = os.environ.get("SLURM_STEP_ID", "0")
NAME = f"hpcstack-debug-{os.getuid()}-{JOB}.{STEP}-{RANK}"


def await_person(service):
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


class Talk:
    """What pdb reads and writes: a person's lines, whoever is connected at that moment."""

    encoding = "utf-8"

    def __init__(self):
        self.service = socket.socket(socket.AF_UNIX)
        self.service.bind("\0" + NAME)
        self.service.listen(1)
        self.lines = None
        self.connected = None
        self.said = ""  # kept for the next person where nobody listens

    def readline(self):
        """Return the next line that somebody typed. Wait for somebody where nobody is there."""
        while True:
            self.flush()
            line = self.lines.readline()
            if line:
                return line
            self.leave()

    def write(self, text):
        self.said += text

    def flush(self):
        """Say what is to be said, to whoever is there."""
        if self.connected is None:
            self.connected = await_person(self.service)
            self.lines = self.connected.makefile("r", encoding="utf-8", errors="replace")
        try:
            self.connected.sendall(self.said.encode())
        except OSError:
            self.leave()
        else:
            self.said = ""

    def leave(self):
        """Forget the one who has gone."""
        if self.connected is not None:
            self.lines.close()
            self.connected.close()
            self.connected = None


class Debugger(pdb.Pdb):
    """pdb on a socket. Leaving it by `q` ends the program."""

    def __init__(self, talk):
        super().__init__(stdin=talk, stdout=talk)
        self.use_rawinput = False
        self.prompt = "(pdb) "
        self.was_left = False

    def set_quit(self):
        """Note that somebody typed `q`."""
        self.was_left = True
        super().set_quit()


def load_program(argv):
    """Return (its code, the variables of its module) of the program ARGV.

    Set sys.argv, sys.path and the module __main__ as Python does.
    """
    while argv[0].startswith("-") and argv[0] not in ("-m", "-c"):
        argv = argv[2 if argv[0] in ("-X", "-W") else 1 :]  # Python's own options
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
        sys.path.insert(0, os.path.dirname(os.path.abspath(argv[0])))
        with open(argv[0], "rb") as file:
            code = compile(file.read(), os.path.abspath(argv[0]), "exec")
        module.__file__ = argv[0]
        sys.argv = argv
    sys.modules["__main__"] = module
    return code, module.__dict__


def main():
    """Run the program to its end, below the debugger."""
    sys.path.pop(0)  # of `python -c`
    code, variables = load_program(sys.argv[1:])
    debugger = Debugger(Talk())
    sys.breakpointhook = lambda *_, **__: debugger.set_trace(sys._getframe(1))
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
