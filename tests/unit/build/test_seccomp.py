"""The filter of a step's system calls, run as the kernel runs it."""

from __future__ import annotations

import struct

import pytest

from hpcstack.build.engines.seccomp import AARCH64, X86_64, make_filter

I386 = 0x40000003  # AUDIT_ARCH_I386, linux/audit.h
ALLOWED, DONE, NOT_THERE = 0x7FFF0000, 0x00050000, 0x00050026


def verdict(machine: str, architecture: int, number: int, *arguments: int) -> int:
    """What the filter of MACHINE returns for a call: classic BPF, of which it uses five
    instructions.
    """
    words = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    code, at, value = make_filter(machine), 0, 0
    while True:
        kind, true, false, constant = struct.unpack_from("=HBBI", code, at * 8)
        at += 1
        if kind == 0x20:
            value = struct.unpack_from("=I", words, constant)[0]
        elif kind == 0x15:
            at += true if value == constant else false
        elif kind == 0x45:
            at += true if value & constant else false
        elif kind == 0x06:
            return int(constant)
        else:
            raise AssertionError(f"{kind:#x}: not an instruction that the filter is known to use")


@pytest.mark.parametrize(
    ("machine", "architecture", "number", "arguments", "expected"),
    [
        pytest.param("x86_64", X86_64, 0, (), ALLOWED, id="read"),
        pytest.param("x86_64", X86_64, 92, (), DONE, id="chown"),
        pytest.param("x86_64", X86_64, 250, (), NOT_THERE, id="keyctl"),
        pytest.param("x86_64", X86_64, 133, (0, 0o020666), DONE, id="mknod of a device"),
        pytest.param("x86_64", X86_64, 133, (0, 0o010666), ALLOWED, id="mknod of a pipe"),
        pytest.param("x86_64", X86_64, 259, (0, 0, 0o060666), DONE, id="mknodat of a disk"),
        pytest.param(
            "x86_64", X86_64, 0x40000000 | 250, (), NOT_THERE, id="keyctl by its x32 number"
        ),
        pytest.param("x86_64", X86_64, 0x40000000, (), NOT_THERE, id="read by its x32 number"),
        pytest.param("x86_64", I386, 288, (), NOT_THERE, id="keyctl by int 0x80"),
        pytest.param("x86_64", I386, 14, (0, 0o020666), NOT_THERE, id="mknod by int 0x80"),
        pytest.param("aarch64", AARCH64, 63, (), ALLOWED, id="read on arm64"),
        pytest.param("aarch64", AARCH64, 219, (), NOT_THERE, id="keyctl on arm64"),
        pytest.param(
            "aarch64", 0x40000028, 311, (), NOT_THERE, id="keyctl of a 32-bit program on arm64"
        ),
    ],
)
def test_calls(
    machine: str, architecture: int, number: int, arguments: tuple[int, ...], expected: int
) -> None:
    assert verdict(machine, architecture, number, *arguments) == expected
