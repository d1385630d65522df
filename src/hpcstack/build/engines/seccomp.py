"""A seccomp filter that lets a build believe it is root: changes of owner and of identity succeed
and do nothing.

One user id is mapped in a user namespace without newuidmap, so chown, setgroups and their kin would
fail, and with them the postinst of many a package. Files belong to root in the image anyway. The
method is Charliecloud's and Enroot's: https://hpc.github.io/charliecloud/ch-image.html
(--force=seccomp). Numbers: the kernel's syscall tables.
"""

from __future__ import annotations

import struct

LOAD, JUMP_EQUAL, JUMP_ANY, RETURN, AND = 0x20, 0x15, 0x45, 0x06, 0x54
ALLOW, DONE = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with errno 0
NUMBER, ARCHITECTURE, ARGUMENT = (
    0,
    4,
    16,
)  # offsets in struct seccomp_data; arguments are 8 bytes each
DEVICE = 0x2000  # S_IFCHR and S_IFBLK share this bit; no other type that mknod makes has it
X86_64, AARCH64 = 0xC000003E, 0xC00000B7
ARCHITECTURES = {"x86_64": X86_64, "aarch64": AARCH64}
FAKED: dict[str, tuple[int, ...]] = {
    # chown fchown lchown, set- uid gid reuid regid groups resuid resgid fsuid fsgid, fchownat
    "x86_64": (92, 93, 94, 105, 106, 113, 114, 116, 117, 119, 122, 123, 260),
    # fchownat fchown, set- regid gid reuid uid resuid resgid fsuid fsgid groups
    "aarch64": (54, 55, 143, 144, 145, 146, 147, 149, 151, 152, 159),
}
# add_key, request_key, keyctl: keys have no name space, and whoever knows a serial number reads the
# builder's.
REFUSED: dict[str, tuple[int, ...]] = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}
NOT_THERE = 0x00050000 | 38  # SECCOMP_RET_ERRNO with ENOSYS
X32 = 0x40000000  # __X32_SYSCALL_BIT: the same calls by other numbers
CAPSET = {"x86_64": 126, "aarch64": 91}
# (number, which argument is the mode) of mknod and mknodat: only device nodes are passed over.
NODES: dict[str, tuple[tuple[int, int], ...]] = {
    "x86_64": ((133, 1), (259, 2)),
    "aarch64": ((33, 2),),
}


def _instruction(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, true, false, value)


def make_filter(machine: str) -> bytes:
    """The filter as classic BPF; MACHINE as `uname -m` says. KeyError for another one.

    Calls of another architecture (i386's by int 0x80, x32's) have other numbers, and would pass:
    none is there.
    """
    out = [
        _instruction(LOAD, ARCHITECTURE),
        _instruction(JUMP_EQUAL, ARCHITECTURES[machine], 1, 0),
        _instruction(RETURN, NOT_THERE),
        _instruction(LOAD, NUMBER),
    ]
    if machine == "x86_64":
        out += [_instruction(JUMP_ANY, X32, 0, 1), _instruction(RETURN, NOT_THERE)]
    for number in (*FAKED[machine], CAPSET[machine]):
        out += [_instruction(JUMP_EQUAL, number, 0, 1), _instruction(RETURN, DONE)]
    for number in REFUSED[machine]:
        out += [_instruction(JUMP_EQUAL, number, 0, 1), _instruction(RETURN, NOT_THERE)]
    for number, argument in NODES[machine]:
        out += [
            _instruction(JUMP_EQUAL, number, 0, 4),
            _instruction(LOAD, ARGUMENT + 8 * argument),
            _instruction(JUMP_ANY, DEVICE, 0, 1),
            _instruction(RETURN, DONE),
            _instruction(RETURN, ALLOW),
        ]
    return b"".join([*out, _instruction(RETURN, ALLOW)])
