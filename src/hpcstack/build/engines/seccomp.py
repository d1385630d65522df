"""A seccomp filter that lets a build believe that it is root.

Changes of owner and of identity succeed, and do nothing. A user namespace made without newuidmap
maps one user id only, so chown, setgroups and the like would fail, and with them the postinst
script of many a package. In the image all files belong to root anyway.

The method is Charliecloud's and Enroot's: https://hpc.github.io/charliecloud/ch-image.html
(--force=seccomp). The numbers are those of the kernel's syscall tables.
"""

from __future__ import annotations

import struct

# Instructions of classic BPF.
LOAD, JUMP_EQUAL, JUMP_ANY, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW = 0x7FFF0000  # SECCOMP_RET_ALLOW
DONE = 0x00050000  # SECCOMP_RET_ERRNO with errno 0: the call is skipped, and has succeeded
NOT_THERE = 0x00050000 | 38  # SECCOMP_RET_ERRNO with ENOSYS
# Offsets in struct seccomp_data; arguments are 8 bytes each.
NUMBER, ARCHITECTURE, ARGUMENT = 0, 4, 16
DEVICE = 0x2000  # S_IFCHR and S_IFBLK share this bit; no other type that mknod makes has it
X86_64, AARCH64 = 0xC000003E, 0xC00000B7
ARCHITECTURES = {"x86_64": X86_64, "aarch64": AARCH64}
# System calls that are skipped, and succeed.
FAKED: dict[str, tuple[int, ...]] = {
    # chown fchown lchown, set- uid gid reuid regid groups resuid resgid fsuid fsgid, fchownat
    "x86_64": (92, 93, 94, 105, 106, 113, 114, 116, 117, 119, 122, 123, 260),
    # fchownat fchown, set- regid gid reuid uid resuid resgid fsuid fsgid groups
    "aarch64": (54, 55, 143, 144, 145, 146, 147, 149, 151, 152, 159),
}
# add_key, request_key, keyctl: keyrings have no namespace, so a step could read the builder's keys
# by their serial numbers.
REFUSED: dict[str, tuple[int, ...]] = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}
X32 = 0x40000000  # __X32_SYSCALL_BIT: the same calls by other numbers
CAPSET = {"x86_64": 126, "aarch64": 91}
# (number, which argument is the mode) of mknod and mknodat. Only device nodes are skipped.
NODES: dict[str, tuple[tuple[int, int], ...]] = {
    "x86_64": ((133, 1), (259, 2)),
    "aarch64": ((33, 2),),
}


def _instruction(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
    """Return one struct sock_filter; a jump passes over TRUE or FALSE instructions."""
    return struct.pack("=HBBI", code, true, false, value)


def make_filter(machine: str) -> bytes:
    """Return the filter for MACHINE, as `uname -m` names it, in classic BPF.

    Calls of another architecture (i386's by int 0x80, x32's) have other numbers and would pass the
    filter, so they do not exist for a step. Raise KeyError for an unknown MACHINE.
    """
    out = [
        _instruction(LOAD, ARCHITECTURE),
        _instruction(JUMP_EQUAL, ARCHITECTURES[machine], 1, 0),
        _instruction(RETURN, NOT_THERE),
        _instruction(LOAD, NUMBER),
    ]
    if machine == "x86_64":
        out += [_instruction(JUMP_ANY, X32, 0, 1), _instruction(RETURN, NOT_THERE)]

    # Each of these is compared with the number, which stays loaded.
    for number in (*FAKED[machine], CAPSET[machine]):
        out += [_instruction(JUMP_EQUAL, number, 0, 1), _instruction(RETURN, DONE)]
    for number in REFUSED[machine]:
        out += [_instruction(JUMP_EQUAL, number, 0, 1), _instruction(RETURN, NOT_THERE)]

    # mknod: load the mode in place of the number; skip the call if it asks for a device.
    for number, argument in NODES[machine]:
        out += [
            _instruction(JUMP_EQUAL, number, 0, 4),
            _instruction(LOAD, ARGUMENT + 8 * argument),
            _instruction(JUMP_ANY, DEVICE, 0, 1),
            _instruction(RETURN, DONE),
            _instruction(RETURN, ALLOW),
        ]

    out.append(_instruction(RETURN, ALLOW))
    return b"".join(out)
