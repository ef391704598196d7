"""A small program that enters the namespaces of sandboxes; `namespaces.NamespaceHelper` starts it.

To set a sysctl such as user.max_inotify_instances, a process has to be in the namespace, and a process with threads
can't enter a user namespace. So this one has no threads. For each request it forks a child, which enters the
namespaces, does the work and ends. It imports little, because a fork costs more for a process with more memory.
"""

# ruff: noqa: PTH116, PTH123  (pathlib would be a third of its memory)

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_USER, _IPC, _NET = 0x10000000, 0x08000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWIPC, CLONE_NEWNET
_NS_GET_USERNS = 0xB701
_LIBC = ctypes.CDLL(None, use_errno=True)
_NICE = -10
_SEMAPHORE_BYTES = 128
_MESSAGE_BYTES = 64  # the kernel's header of one message


def _serve(link: socket.socket) -> None:
    """Fork a child for each request, until the other end of the socket is closed."""
    with contextlib.suppress(PermissionError):  # only root may: a watcher waits for this process
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    gc.freeze()
    gc.disable()
    while True:
        message, spaces, _, _ = socket.recv_fds(link, 4096, 3)
        if not message:
            return
        request = json.loads(message)  # here: each page that only the child touches is a page fault for each request
        child = os.fork()
        if child == 0:
            try:
                reply = _handle(request, *spaces)
            except OSError:
                reply = "{}"
            link.send(reply.encode())
            os._exit(0)
        for fd in spaces:
            os.close(fd)
        if os.waitpid(child, 0)[1]:
            link.send(b"{}")


def _handle(request: dict[str, Any], user: int, ipc: int, net: int) -> str:
    """Enter the namespaces and do what is requested. Returns the reply as JSON. Raises OSError."""
    outer = fcntl.ioctl(ipc, _NS_GET_USERNS)
    unprivileged = os.geteuid() != 0
    if unprivileged:  # the owner of a user namespace has every capability in it, and in those below
        _enter(outer, _USER)
    _enter(ipc, _IPC)
    if "count" in request:
        _enter(net, _NET)
        return json.dumps({"counted": {"sysv_bytes": _sysv_bytes(), **_socket_bytes()}})
    sysctls: dict[str, str] = request["sysctls"]
    written = [name for name, value in sysctls.items() if name.startswith("kernel/") and _write(name, value)]
    if not (unprivileged and os.path.sameopenfile(outer, user)):  # a process can't enter the one that it is in
        _enter(user, _USER)
    written += [name for name, value in sysctls.items() if name.startswith("user/") and _write(name, value)]
    return '{"written": [' + ", ".join(['"' + name + '"' for name in written]) + "]}"  # half the cost of json.dumps


def _enter(fd: int, kind: int) -> None:
    if _LIBC.setns(fd, kind):  # os.setns exists from Python 3.12 on
        raise OSError(ctypes.get_errno(), "setns")


def _write(name: str, value: str) -> bool:
    """Write a sysctl as its owner, which for an IPC namespace is that namespace's root.

    Returns False if this kernel refuses it.
    """
    path = "/proc/sys/" + name
    before = os.geteuid()
    try:
        owner = os.stat(path).st_uid
        if name.startswith("kernel/") and owner != before:
            os.seteuid(owner)
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # open() would touch twice as many pages as all the rest
        try:
            os.write(file, value.encode())
        finally:
            os.close(file)
    except OSError:
        return False
    finally:
        if os.geteuid() != before:
            os.seteuid(before)
    return True


def _sysv_bytes() -> int:
    """Return bytes of System V shared memory, also of segments that nobody has attached, of queues and semaphores."""
    total = 0
    for name, columns in (
        ("shm", (("rss", 1), ("swap", 1))),
        ("msg", (("cbytes", 1), ("qnum", _MESSAGE_BYTES))),
        ("sem", (("nsems", _SEMAPHORE_BYTES),)),
    ):
        with contextlib.suppress(OSError):
            with open(f"/proc/sysvipc/{name}") as file:
                names, *lines = file.read().splitlines()
            at = [(names.split().index(column), factor) for column, factor in columns]
            for line in lines:
                fields = line.split()
                total += sum(int(fields[index]) * factor for index, factor in at)
    return total


_UNIX, _INET, _INET6, _TCP, _UDP = 1, 2, 10, 6, 17
_SKMEMINFO = {_UNIX: 5, _INET: 7, _INET6: 7}  # UNIX_DIAG_MEMINFO, INET_DIAG_SKMEMINFO
_UNIX_REQUEST = struct.pack("=BBHIIIII", _UNIX, 0, 0, 0xFFFFFFFF, 0, 0x20, 0xFFFFFFFF, 0xFFFFFFFF)


def _socket_bytes() -> dict[str, int]:
    """Count bytes in the buffers of all sockets of this network namespace, as `ss -m` does, also of those in flight."""
    total = count = 0
    requests = [_UNIX_REQUEST] + [
        struct.pack("=BBBBI48s", family, protocol, 1 << 6, 0, 0xFFFFFFFF, b"")
        for family in (_INET, _INET6)
        for protocol in (_TCP, _UDP)
    ]
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diag:  # NETLINK_SOCK_DIAG
        for request in requests:
            for message in _dump(diag, request):
                total += _buffered(message, _SKMEMINFO[request[0]], 16 if request[0] == _UNIX else 72)
                count += 1
    return {"socket_bytes": total, "sockets": count}


def _dump(diag: socket.socket, request: bytes) -> Iterator[bytes]:
    """Yield the answers to one request (SOCK_DIAG_BY_FAMILY with NLM_F_REQUEST and NLM_F_DUMP)."""
    diag.send(struct.pack("=IHHII", 16 + len(request), 20, 0x301, 1, 0) + request)
    while True:
        data = diag.recv(1 << 17)
        at = 0
        while at < len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind in (2, 3):  # NLMSG_ERROR: the kernel does not know this family; NLMSG_DONE
                return
            yield data[at + 16 : at + length]
            at += (length + 3) & ~3


def _buffered(message: bytes, kind: int, at: int) -> int:
    """Return bytes that were received and not read, or sent and not received, from a socket's attribute `kind`."""
    while at + 4 <= len(message):
        length, found = struct.unpack_from("=HH", message, at)
        if found == kind:
            received, _, sent, _, _, queued = struct.unpack_from("=6I", message, at + 4)
            return int(received + max(sent, queued))
        at += (max(length, 4) + 3) & ~3
    return 0


if __name__ == "__main__":
    _serve(socket.socket(fileno=0))
