"""A program and all that it starts end with who asked for it, however that ends.

    supervise.py COMMAND...

For programs that run in no enclosure: where no namespace of ours can be made, a process namespace
cannot end them, and the kernel forgets PR_SET_PDEATHSIG in a program that takes on other rights, as
Apptainer's starter does. So this one stays beside COMMAND, is the parent of whatever COMMAND leaves
behind (PR_SET_CHILD_SUBREAPER), and kills all of it when its own parent is gone, when it is told to
end, and when COMMAND has ended. Its exit status is COMMAND's.

Run by the machine's Python, without libraries.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
ROUNDS, PAUSE_S = 100, 0.05  # what is killed may be about to start another


def children_by_parent():
    """{process: its children}, of all processes that can be seen."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        is_dead, parent = fields[0] in "ZX", int(fields[1])
        if not is_dead:
            found.setdefault(parent, []).append(int(name))
    return found


def find_descendants(process):
    """All that PROCESS has started, and what that has."""
    children, found, left = children_by_parent(), [], [process]
    while left:
        mine = children.get(left.pop(), [])
        found += mine
        left += mine
    return found


def end_descendants():
    """Kill until nothing is left; what cannot be killed is left after ROUNDS."""
    for _ in range(ROUNDS):
        living = find_descendants(os.getpid())
        if not living:
            return
        for process in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(PAUSE_S)


def main(command):
    started_by = os.getppid()
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def end(number, _frame):
        end_descendants()
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != started_by:  # it was gone before the kernel was asked
        return 128 + signal.SIGTERM

    try:
        process = subprocess.Popen(command, close_fds=False)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 126 if isinstance(error, PermissionError) else 127
    status = process.wait()
    end_descendants()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
