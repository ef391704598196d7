"""Agents that fill memory in ways that are easily overlooked. The bounds are small, so that this costs little."""

from __future__ import annotations

from typing import Any

from .agents import Hostile, python

OVER: dict[str, Any] = {"status": "failed", "codes": ("sandbox_limit_exceeded",), "says": "memory", "rounds": 40}
WAIT = "\nimport time\ntime.sleep(20)\n"
STEP = "time.sleep(0.05)"

SHARED = f"""
import mmap, time
held = []
for _ in range(60):
    held.append(mmap.mmap(-1, 1 << 24))
    held[-1].write(bytes(1 << 24))
    {STEP}
"""
MEMFD = f"""
import os, time
for number in range(60):
    file = os.memfd_create(f"m{{number}}")
    os.write(file, bytes(1 << 24))
    {STEP}
"""
PRIVATE = f"""
import os, time
held = []
for _ in range(4):
    if os.fork() == 0:
        for _ in range(15):
            held.append(b"x" * (1 << 24))
            {STEP}
        break
"""
SOCKETS = """
import os, socket, time
for _ in range(24):
    if os.fork() == 0:
        held = []
        for _ in range(490):
            pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            pair[0].setblocking(False)
            pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            try:
                while True:
                    pair[0].send(bytes(60000))
            except OSError:
                pass
            held.append(pair)
            time.sleep(0.002)
        time.sleep(20)
"""
PIPES = """
import fcntl, os, time
for _ in range(24):
    if os.fork() == 0:
        held = []
        for _ in range(490):
            pipe = os.pipe()
            try:
                fcntl.fcntl(pipe[1], 1031, 1 << 20)
            except OSError:
                pass
            os.set_blocking(pipe[1], False)
            try:
                while True:
                    os.write(pipe[1], bytes(65536))
            except OSError:
                pass
            held.append(pipe)
            time.sleep(0.002)
        time.sleep(20)
"""

MEMORY = (
    Hostile("shared", python(SHARED + WAIT), **OVER),
    Hostile("memfd", python(MEMFD + WAIT), **OVER),
    Hostile("private", python(PRIVATE + WAIT), **OVER),
    Hostile("socket-buffers", python(SOCKETS + WAIT), **OVER),
    Hostile(
        "pipe-buffers",
        python(PIPES + WAIT),
        status="",
        codes=(None, "sandbox_limit_exceeded"),
        yaml="timeout: 15",
        rounds=40,
    ),
)
