"""Talks to a rank that waits below its debugger (in-image/debugged.py), in the same container.

Argument: RANK. Ctrl-C stops the rank where it is. Ctrl-D leaves; the rank stays as it is.

Needs Python 3.6, as images have it.
"""

import os
import signal
import socket
import struct
import sys
import threading

LISTENS = "00010000"  # __SO_ACCEPTCON: the flags, in /proc/net/unix, of a socket that listens


def list_names(beginning):
    """Return the abstract names of sockets that listen and whose name has this BEGINNING.

    Anybody may have bound such a name.
    """
    found = []
    with open("/proc/net/unix", errors="replace") as table:
        for line in table:
            # Num RefCount Protocol Flags Type St Inode Path, where @ stands for the zero byte
            fields = line.split()
            if len(fields) == 8 and fields[3] == LISTENS and fields[7].startswith("@" + beginning):
                found.append("\0" + fields[7][1:])
    return found


def connect():
    """Return a connection to the rank, and the number of its process."""
    job = os.environ.get("SLURM_JOB_ID", "")
    step = os.environ.get("SLURM_STEP_ID", "0")
    for name in list_names(f"hpcstack-debug-{os.getuid()}-{job}.{step}-{sys.argv[1]}-"):
        service = socket.socket(socket.AF_UNIX)
        service.setblocking(False)  # one that lets nobody in is passed over
        try:
            service.connect(name)
        except OSError:
            service.close()
            continue
        data = service.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        process, user, _ = struct.unpack("3i", data)
        if user == os.getuid():
            service.setblocking(True)
            return service, process
        service.close()  # somebody else answers in place of the rank

    wanted = os.environ.get("HPCSTACK_DEBUG")
    tip = f"hpcstack enter {job} --rank {wanted} --debug" if wanted else "launch --debug RANK"
    sys.exit(f"hpcstack: rank {sys.argv[1]} has no debugger\n  TIP: {tip}")


def show(service):
    """Show what the debugger says, until it has ended."""
    while True:
        try:
            data = service.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        os.write(1, data)


def main():
    """Hand on lines until this side or the other ends."""
    service, process = connect()
    signal.signal(signal.SIGINT, lambda *_: os.kill(process, signal.SIGINT))
    shown = threading.Thread(target=show, args=(service,), daemon=True)
    shown.start()
    while True:
        line = sys.stdin.readline()
        if not line:
            break
        try:
            service.sendall(line.encode())
        except OSError:
            break
    if not sys.stdin.isatty():
        # All that was typed is done, and answered, before the other side closes.
        service.shutdown(socket.SHUT_WR)
        shown.join()


main()
