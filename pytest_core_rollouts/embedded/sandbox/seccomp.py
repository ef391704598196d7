"""System calls that no agent needs and no namespace shuts in, as a seccomp filter for bwrap.

Kernel keyrings belong to a user and not to a namespace: as an ordinary user, whose uid the sandbox shares outside, an
agent could read the login's keys. The others are doors into the kernel which container runtimes close as well.
"""

from __future__ import annotations

import errno
import os
import struct

# machine: (audit architecture, numbers of the system calls)
_ARCHITECTURES = {
    "x86_64": (0xC000003E, {"add_key": 248, "request_key": 249, "keyctl": 250, "perf_event_open": 298, "bpf": 321}),
    "aarch64": (0xC00000B7, {"add_key": 217, "request_key": 218, "keyctl": 219, "perf_event_open": 241, "bpf": 280}),
}
_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_IO_URING = (425, 426, 427)  # setup, enter, register: the same on both
_X32 = 0x40000000  # from here on: x86-64's other system call table

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_NUMBER, _ARCHITECTURE = 0, 4  # where they stand in struct seccomp_data


def filter_program(machine: str = os.uname().machine) -> bytes | None:
    """The filter as an array of `struct sock_filter`; None for a machine whose numbers are not known here."""
    if machine not in _ARCHITECTURES:
        return None
    architecture, numbers = _ARCHITECTURES[machine]
    refused = [*numbers.values(), _USERFAULTFD[machine], *_IO_URING]
    checks: list[tuple[int, int]] = [(_EQUAL, number) for number in refused]
    if machine == "x86_64":
        checks.append((_AT_LEAST, _X32))
    # Another architecture's calls have other numbers: refused, all of them. Jumps are relative; the last two
    # instructions are "allow" and "refuse".
    program = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 0, len(checks) + 2, architecture), (_LOAD, 0, 0, _NUMBER)]
    program += [(code, len(checks) - at, 0, number) for at, (code, number) in enumerate(checks)]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
