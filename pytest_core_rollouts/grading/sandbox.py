"""A sandbox on this machine for graders: what an agent wrote is run in it, never on the machine itself.

    done = run_in_sandbox(["python3", "-m", "unittest"], {"fixed.py": content}, timeout=20)
    done.returncode, done.output, done.timed_out

It is one of the embedded Core's (Linux, `pytest-core-rollouts[embedded]`): no network, none of this machine's files but
its programs, bounded memory and disk, gone afterwards. What a run hides from its agents is hidden here too, in any
process that the run has started and in any working directory (see `embedded.hidden`).
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_core_rollouts.embedded.hidden import hidden_places, merge_places

if TYPE_CHECKING:
    from pytest_core_rollouts.embedded.sandbox import Completed, Isolation

_lock = threading.Lock()
_isolations: dict[tuple[str, ...], Isolation] = {}


def run_in_sandbox(
    argv: Sequence[str],
    files: Mapping[str, bytes],
    *,
    timeout: float = 30.0,
    env: Mapping[str, str] = {},
) -> Completed:
    """Run a command in a new sandbox's /workspace, with these files (by relative path) in it, and wait for its end.

    `timeout` in seconds. The result has `returncode`, `output` (both streams, at most 1 MiB) and `timed_out`. May be
    called from any thread. Raises ValueError for a path that leads out of /workspace, and where no sandbox can be made
    `embedded.sandbox.SandboxUnavailable`, with the remedy.
    """
    from pytest_core_rollouts.embedded.sandbox import Sandbox

    isolation = _isolation()
    sandbox = Sandbox(isolation, isolation.sessions / uuid.uuid4().hex)
    try:
        sandbox.write_files((f"/workspace/{path}", content) for path, content in files.items())
        return asyncio.run(sandbox.run(argv, env=env, timeout=timeout))
    finally:
        sandbox.destroy()


def _isolation() -> Isolation:
    """Found once for all that must be hidden: the working directory, and what this process knows of."""
    from pytest_core_rollouts.embedded.sandbox import Isolation

    places = merge_places([*hidden_places(), Path.cwd()])
    with _lock:
        if places not in _isolations:
            _isolations[places] = Isolation.probe(hidden=list(map(Path, places)))
        return _isolations[places]
