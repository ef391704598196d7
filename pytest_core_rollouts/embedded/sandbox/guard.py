"""The last safeguard against sandboxes that outlive us."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

_SCRIPT = """
read -r _
for round in 1 2 3 4 5; do
    for file in $(grep -lsF -e "$TOKEN" /proc/[0-9]*/cmdline); do
        process=${file#/proc/}
        kill -9 "${process%/cmdline}"
    done
    sleep 0.1
done
"""


class Guard:
    """A shell that waits for our end and then kills what is left with `token` on its command line.

    bwrap's parts die with us, each tied to its parent, but between its first moments there are some microseconds in
    which its outer process is tied already and its child not yet: killed then, the outer one leaves a child that waits
    for it for ever. `prefix` makes the shell run under the sandboxes' uid, so that it can kill nothing else.
    """

    def __init__(self, token: str, prefix: Sequence[str] = ()) -> None:
        read_end, self._lifeline = os.pipe()
        try:
            self._shell = subprocess.Popen(
                [*prefix, "/bin/sh", "-c", _SCRIPT],
                env={"TOKEN": token, "PATH": "/usr/bin:/bin"},
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # not reached by Ctrl-C, nor by what kills our process group
            )
        finally:
            os.close(read_end)

    def close(self) -> None:
        """Dismiss it: nothing is left. Repeatable."""
        if self._shell.poll() is None:
            self._shell.kill()
            self._shell.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
