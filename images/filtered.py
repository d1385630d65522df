"""COMMAND under a seccomp filter: filtered.py DESCRIPTOR COMMAND...

DESCRIPTOR is an open file with the filter, classic BPF. For what takes no filter of ours itself (Apptainer, of an
ordinary user); all that COMMAND starts has the filter, too. Run by the Python of the machine, without libraries.
"""

import ctypes
import os
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2  # linux/prctl.h, linux/seccomp.h


class Program(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def main() -> None:
    descriptor, command = int(sys.argv[1]), sys.argv[2:]
    with os.fdopen(descriptor, "rb") as file:
        text = file.read()
    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(len(text) // 8, text)
    for words in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*words):
            sys.exit(f"filtered.py: the kernel takes no filter: {os.strerror(ctypes.get_errno())}")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
