"""One of Slurm's commands, typed in a container: srun, squeue and so on, by the name of this file.

The helper that the launch has started on the node (on-node/slurm_helper.py) runs the host's own
program with this one's standard streams, which it is handed as descriptors. Signals go there, and
the program's exit status comes back.

As `script`, it runs the batch script on its standard input, with its arguments.

Needs Python 3.6, as images have it.
"""

import array
import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time

PATIENCE = 20  # seconds for a helper that is about to start
# Slurm and terminals send these; STOP and KILL cannot be caught.
HANDED_ON = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGWINCH, signal.SIGALRM, signal.SIGABRT,
)  # fmt: skip
# What a program takes over from its caller. srun hands it on to its tasks.
LIMITS = ("AS", "CORE", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "STACK")


def fail(text, status=1):
    """End with STATUS, after TEXT for people."""
    sys.stderr.write(f"hpcstack: {text}\n")
    sys.exit(status)


def connect():
    """Return a connection to this node's helper, which is this user's."""
    name = os.environ.get("HPCSTACK_SLURM_SOCKET")
    if not name:
        fail("Slurm cannot be reached from here\n  TIP: hpcstack launch --slurm")
    until = time.monotonic() + PATIENCE
    while True:
        service = socket.socket(socket.AF_UNIX)
        try:
            service.connect("\0" + name)
            break
        except OSError as error:
            service.close()
            if time.monotonic() > until:
                fail(f"the helper of this step does not answer: {error.strerror}")
        time.sleep(0.05)
    data = service.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", data)[1] != os.getuid():
        fail("another user is answering in place of this step's helper")
    return service


def is_in_background():
    """Return whether this program may not read the terminal that is its standard input."""
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        return False  # it is no terminal, or not this session's


def send_streams(service):
    """Send this program's three standard streams, with one byte."""
    streams = []
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # it is closed
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        streams.append(number)
    if is_in_background():
        # The kernel would not keep a program of another session from reading what is typed.
        streams[0] = os.open(os.devnull, os.O_RDONLY)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))
    service.sendmsg([b"\n"], [rights])


def send(service, **message):
    """Send MESSAGE; the helper may have gone."""
    with contextlib.suppress(OSError):
        service.sendall(json.dumps(message).encode() + b"\n")


def decode(text):
    """Return TEXT, whose bytes the system decoded, as UTF-8 whatever the locale is."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def describe_call(argv):
    """Return what the helper is to know: what was typed, where, and what a child would inherit."""
    here = os.stat(".")
    try:
        cwd = os.getcwd()
    except OSError:
        cwd = "/"
    umask = os.umask(0)
    os.umask(umask)
    limits = {f"RLIMIT_{one}": getattr(resource, f"RLIMIT_{one}") for one in LIMITS}
    return {
        "argv": [decode(word) for word in argv],
        "cwd": decode(cwd),
        "cwd_is": [here.st_dev, here.st_ino],
        "environ": {decode(name): decode(value) for name, value in os.environ.items()},
        "umask": umask,
        "limits": {name: resource.getrlimit(number)[0] for name, number in limits.items()},
    }


def read_script(path):
    """Return the answer with the text of the batch script at PATH, - for standard input.

    As sbatch does, look on PATH for a name that is no file here.
    """
    if path != "-" and "/" not in path and not os.path.exists(path):
        path = shutil.which(path) or path
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
            return {"text": file.read().decode("utf-8", "surrogateescape")}
    except OSError as error:
        return {"error": f"{path}: {error.strerror}"}


def forward_signals(service):
    """From now on, hand signals on to the program, which is about to start.

    What the caller ignores, as nohup does, stays ignored.
    """

    def hand_on(number, _frame):
        send(service, signal=number)

    def stop(_number, _frame):
        send(service, signal=signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)

    def go_on(_number, _frame):
        if is_in_background():  # by `bg`: the program would read what is typed
            os.kill(os.getpid(), signal.SIGTTIN)
        else:
            send(service, signal=signal.SIGCONT)

    handlers = dict.fromkeys(HANDED_ON, hand_on)
    handlers.update({signal.SIGTSTP: stop, signal.SIGCONT: go_on})
    for number, handler in handlers.items():
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def run_on_node(argv):
    """Have the helper run ARGV. Return (its exit status, the signal that it died of)."""
    service = connect()
    send_streams(service)
    send(service, **describe_call(argv))
    with service.makefile("rb") as lines:
        for line in lines:
            message = json.loads(line.decode())
            if "says" in message:
                sys.stderr.write(f"hpcstack: {message['says']}\n")
            elif "read" in message:
                path = message["read"].encode("utf-8", "surrogateescape")
                send(service, **read_script(os.fsdecode(path)))
            elif "starting" in message:
                forward_signals(service)
                send(service, heeded=True)
            elif "error" in message:
                fail(f"{argv[0]}: {message['error']}")
            else:
                return message.get("status", 0), message.get("signal", 0)
    fail("the helper of this step has ended")
    raise AssertionError


def run_script(arguments):
    """Run the script on standard input in place of this program, with ARGUMENTS."""
    text = sys.stdin.buffer.read()
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("script", 0)
    else:
        with tempfile.TemporaryFile() as unlinked:
            file = os.dup(unlinked.fileno())
    view = memoryview(text)
    while view:
        view = view[os.write(file, view) :]
    os.set_inheritable(file, True)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)

    # As the kernel reads the first line: an interpreter, and one argument at most.
    head = text.split(b"\n", 1)[0][2:].strip().split(None, 1)
    argv = [*map(os.fsdecode, head), f"/proc/self/fd/{file}", *arguments]
    try:
        os.execv(argv[0], argv)
    except OSError as error:
        fail(f"{argv[0]}: {error.strerror}", 127)


def main():
    """Be what this file is called."""
    name = os.path.basename(sys.argv[0])
    if name == "script":
        run_script(sys.argv[1:])
    status, number = run_on_node([name, *sys.argv[1:]])
    if number:
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core would be this program's
        os.kill(os.getpid(), number)
        status = 128 + number
    sys.exit(status)


if __name__ == "__main__":
    main()
