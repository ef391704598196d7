"""Descriptors 0 to 2, which a process may have been started without (`<&-` in a shell)."""

from __future__ import annotations

import os


def open_standard_descriptors() -> None:
    """Open /dev/null for each of descriptors 0 to 2 that is closed.

    Otherwise the next file or socket gets the number, and a child process can't have it both as that and as its
    standard input or output.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
