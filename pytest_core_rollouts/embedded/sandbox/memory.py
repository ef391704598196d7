"""What a sandbox's memory is, and what the kernel did when the machine had none left."""

from __future__ import annotations

import re
from pathlib import Path


def machine_oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since the machine started; 0 where it does not say.

    The kernel counts before it sends the signal, so a process that died by it is counted when its death is seen.
    """
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text("ascii"), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
