"""In a sandbox: forwards connections from 127.0.0.1:PORT to a unix socket while a command runs.

    python3 forwarder.py PORT SOCKET COMMAND...

The command has this program's stdin and stdout. Its stderr is read separately, so that it never mixes with lines of
stdout. After the command's end, one line of JSON has the last of it: {"type": "exit", "stderr": TEXT}. This program
exits with the command's status, because the agent can write anything to stdout.
It runs under the sandbox's Python, so it only uses the standard library, and syntax of Python 3.7.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from typing import IO

_CHUNK = 65536
_STDERR_KEPT = 8192  # bytes


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy until the end of `source`, then close `sink` for writing."""
    try:
        data = source.recv(_CHUNK)
        while data:
            sink.sendall(data)
            data = source.recv(_CHUNK)
    except OSError:
        pass
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _forward(client: socket.socket, path: str) -> None:
    with client, contextlib.suppress(OSError, RuntimeError), socket.socket(socket.AF_UNIX) as proxy:
        proxy.connect(path)
        back = threading.Thread(target=_pump, args=(proxy, client), daemon=True)
        back.start()
        _pump(client, proxy)
        back.join()


def _accept(listener: socket.socket, path: str) -> None:
    while True:
        try:
            client = listener.accept()[0]
        except OSError:  # too many open files
            time.sleep(0.1)
            continue
        try:
            threading.Thread(target=_forward, args=(client, path), daemon=True).start()
        except RuntimeError:  # too many threads
            client.close()


def _drain(stream: IO[bytes], kept: bytearray) -> None:
    data = os.read(stream.fileno(), _CHUNK)
    while data:
        kept[:] = (bytes(kept) + data)[-_STDERR_KEPT:]
        data = os.read(stream.fileno(), _CHUNK)


def main(port: int, path: str, command: list[str]) -> int:
    """Run the command and return its exit status, as a shell shows it."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    threading.Thread(target=_accept, args=(listener, path), daemon=True).start()
    stderr = bytearray()
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
    except OSError as error:
        status, stderr = 127, bytearray(str(error).encode())
    else:
        assert process.stderr is not None
        drain = threading.Thread(target=_drain, args=(process.stderr, stderr), daemon=True)
        drain.start()
        status = process.wait()
        drain.join(0.2)  # processes that the command left may hold it open
    status = status if status >= 0 else 128 - status
    last = {"type": "exit", "stderr": bytes(stderr).decode("utf-8", "replace")}
    with contextlib.suppress(OSError):
        sys.stdout.write("\n" + json.dumps(last) + "\n")
        sys.stdout.flush()
    return status


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
