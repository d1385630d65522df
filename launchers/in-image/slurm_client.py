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
    signal.SIGWINCH, signal.SIGCONT, signal.SIGALRM, signal.SIGABRT,
)  # fmt: skip


def fail(text, status=1):
    """End with STATUS, after TEXT for people."""
    sys.stderr.write(f"hpcstack: {text}\n")
    sys.exit(status)


def connect():
    """Return a connection to this node's helper, which is this user's."""
    name = os.environ.get("HPCSTACK_SLURM_SOCKET")
    if not name:
        fail("Slurm is not to be reached from here\n  TIP: hpcstack launch --slurm")
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
        fail("another user answers in the place of this step's helper")
    return service


def send_streams(service):
    """Send this program's three standard streams, with one byte."""
    streams = []
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # it is closed
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        streams.append(number)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))
    service.sendmsg([b"\n"], [rights])


def send(service, **message):
    """Send MESSAGE; the helper may have gone."""
    with contextlib.suppress(OSError):
        service.sendall(json.dumps(message).encode() + b"\n")


def read_script(path):
    """Return the answer with the text of the batch script at PATH, - for standard input."""
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
            return {"text": file.read().decode(errors="surrogateescape")}
    except OSError as error:
        return {"error": f"{path}: {error.strerror}"}


def ask(argv):
    """Have the helper run ARGV. Return (its exit status, the signal that it died of)."""
    service = connect()
    send_streams(service)
    here = os.stat(".")
    try:
        cwd = os.getcwd()
    except OSError:
        cwd = "/"
    request = {
        "argv": argv,
        "cwd": cwd,
        "cwd_is": [here.st_dev, here.st_ino],
        "environ": dict(os.environ),
    }
    send(service, **request)

    def hand_on(number, _frame):
        send(service, signal=number)

    for number in HANDED_ON:
        # What the caller ignores, as nohup does, stays ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, hand_on)
    # Ctrl-Z: the program stops, then this one; both go on by fg.
    signal.signal(signal.SIGTSTP, lambda *_: stop(service))

    with service.makefile("rb") as lines:
        for line in lines:
            message = json.loads(line.decode())
            if "says" in message:
                sys.stderr.write(f"hpcstack: {message['says']}\n")
            elif "read" in message:
                # A signal in the middle would be sent in the middle.
                signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
                send(service, **read_script(message["read"]))
                signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
            elif "error" in message:
                fail(f"{argv[0]}: {message['error']}")
            else:
                return message.get("status", 0), message.get("signal", 0)
    fail("the helper of this step has ended")
    raise AssertionError


def stop(service):
    send(service, signal=signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)


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
    status, number = ask([name, *sys.argv[1:]])
    if number:
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        status = 128 + number
    sys.exit(status)


if __name__ == "__main__":
    main()
