"""A seccomp filter for bwrap: refuses system calls that no agent needs and that namespaces don't isolate.

Kernel keyrings belong to a user, not to a namespace. If the Core does not run as root, the sandbox has its uid outside,
so an agent could read the keys of the login. Container runtimes refuse most of the other calls too.

A network namespace only isolates IP. AF_VSOCK, for example, leads to the hypervisor from any namespace, so sockets can
only be made of four families. io_uring can make sockets without the filtered calls, so it is refused entirely. vmsplice
puts pages of a process into a pipe, where only a cgroup counts them.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Final

# machine: (audit architecture, numbers of the system calls)
_GENERIC = {
    **{"add_key": 217, "request_key": 218, "keyctl": 219, "perf_event_open": 241, "bpf": 280, "userfaultfd": 282},
    **{"vmsplice": 75, "socket": 198, "socketpair": 199},
}
_X86_64 = {
    **{"add_key": 248, "request_key": 249, "keyctl": 250, "perf_event_open": 298, "bpf": 321, "userfaultfd": 323},
    **{"vmsplice": 278, "socket": 41, "socketpair": 53},
}
_ARCHITECTURES = {
    "x86_64": (0xC000003E, _X86_64),
    "aarch64": (0xC00000B7, _GENERIC),
    "riscv64": (0xC00000F3, _GENERIC),
    "loongarch64": (0xC0000102, _GENERIC),
}
_SOCKETS = ("socket", "socketpair")
_IO_URING = (425, 426, 427)  # setup, enter, register: the same on all
_X32 = 0x40000000  # from here on: x86-64's other system call table
FAMILIES: Final = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)  # the last is AF_NETLINK, on Linux only
"""The address families that a sandbox may make sockets of. None leads out of its network namespace."""

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_NO_FAMILY = 0x00050000 | errno.EAFNOSUPPORT  # as a kernel without the family: programs handle it
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # where they are in struct seccomp_data; the low half comes first

_Instruction = tuple[int, int, int, int]  # code, how many to skip if true, if false, operand


def filter_program(machine: str = os.uname().machine) -> bytes | None:
    """Return the filter, an array of `struct sock_filter`; None for a machine whose call numbers are not known."""
    if machine not in _ARCHITECTURES:
        return None
    architecture, numbers = _ARCHITECTURES[machine]
    # Other architectures have other numbers (such as socketcall of i386): all their calls are refused.
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        program += _refuse(_AT_LEAST, _X32)
    for name, number in numbers.items():
        if name not in _SOCKETS:
            program += _refuse(_EQUAL, number)
    for number in _IO_URING:
        program += _refuse(_EQUAL, number)
    families = _check_family()
    program += [(_EQUAL, 2, 0, numbers["socket"]), (_EQUAL, 1, 0, numbers["socketpair"]), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in (*program, *families))


def _refuse(code: int, number: int) -> list[_Instruction]:
    return [(code, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]


def _check_family() -> list[_Instruction]:
    """Return the filter's end, for calls that make sockets. The kernel ignores the upper half of the family, an int."""
    checks = [(_EQUAL, len(FAMILIES) - at, 0, int(family)) for at, family in enumerate(FAMILIES)]
    return [(_LOAD, 0, 0, _FIRST_ARGUMENT), *checks, (_RETURN, 0, 0, _NO_FAMILY), (_RETURN, 0, 0, _ALLOW)]
