"""Talks to a rank that waits below its debugger (in-image/debugged.py), in the same container.

Argument: RANK. Ctrl-C stops the rank where it is. Ctrl-D leaves; the rank stays as it is.

Needs Python 3.6, as images have it.
"""

import glob
import os
import signal
import socket
import stat
import struct
import sys
import tempfile
import threading


def list_sockets(name):
    """Return the sockets in folders that begin with NAME and are this user's alone.

    Anybody may have made folders of such a name.
    """
    found = []
    for place in ("/tmp", tempfile.gettempdir()):
        for folder in sorted(glob.glob(f"{glob.escape(place)}/{glob.escape(name)}*")):
            about = os.lstat(folder)
            is_own = about.st_uid == os.getuid() and not about.st_mode & 0o077
            if stat.S_ISDIR(about.st_mode) and is_own:
                found.append(f"{folder}/socket")
    return found


def connect():
    """Return a connection to the rank, and the number of its process."""
    job = os.environ.get("SLURM_JOB_ID", "")
    step = os.environ.get("SLURM_STEP_ID", "0")
    for path in list_sockets(f"hpcstack-debug-{os.getuid()}-{job}.{step}-{sys.argv[1]}."):
        service = socket.socket(socket.AF_UNIX)
        try:
            service.connect(path)
        except OSError:  # of a rank that was killed
            service.close()
            continue
        data = service.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return service, struct.unpack("3i", data)[0]

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
