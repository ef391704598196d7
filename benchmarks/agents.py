"""What a rollout of each real agent costs this machine: memory while its model thinks, CPU from its start to its end.

    python benchmarks/agents.py [--at-once 10]

Runs that many Sessions of each harness side by side on an embedded Core, against a scripted model that takes its time
over each of two replies, and reads /proc. Needs codex and Claude Code, and the repository's `tests` folder.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pytest_core_rollouts.embedded.launch import EmbeddedCore, why_missing
from tests.support.agents import PROTOCOLS, creation
from tests.support.scripted_models import Say, ScriptedModel, Shell
from tests.support.wire import Wire

THINKING_S = 6.0
_TICK = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    found, pending = [], [pid]
    while pending:
        try:
            tasks = list(Path(f"/proc/{pending.pop()}/task").iterdir())
            children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except OSError:
            continue  # it has ended
        found += children
        pending += children
    return found


def memory_mib(pids: list[int]) -> float:
    """Proportional set size: memory shared by several processes is divided among them."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def note_cpu(pids: list[int], seen: dict[int, float]) -> None:
    """CPU-seconds of each process so far; what a process of a tenth of a second uses is missed."""
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        seen[pid] = (int(fields[11]) + int(fields[12])) / _TICK


def measure(harness: str, at_once: int) -> str:
    core = EmbeddedCore.reserve()
    core.start()
    assert core.pid is not None
    replies = (Shell("mkdir -p outputs; echo {} >outputs/answer.json"), Say("Done."))
    try:
        with (
            ScriptedModel(lambda ask: replies[ask.step], delay=THINKING_S) as model,
            httpx.Client(timeout=60, trust_env=False) as client,
        ):
            wire = Wire(client, core.base_url, core.api_key)
            before = memory_mib([core.pid])
            seen: dict[int, float] = {}
            note_cpu([core.pid], seen)
            own = seen[core.pid]
            started = time.monotonic()
            ids = [wire.ok("POST", "/sessions", 201, json=creation(harness, model.url))["id"] for _ in range(at_once)]
            most = core_most = 0.0
            rounds = 0
            while any((turn := wire.turn(id)) is None or turn["status"] != "completed" for id in ids):
                pids = descendants(core.pid)
                note_cpu([core.pid, *pids], seen)
                if rounds % 10 == 0:
                    most = max(most, memory_mib(pids))
                    core_most = max(core_most, memory_mib([core.pid]))
                rounds += 1
                time.sleep(0.05)
            took = time.monotonic() - started
            for id in ids:
                wire.end(id)
            core_cpu = seen.pop(core.pid) - own
            cpu = sum(seen.values())
    finally:
        core.stop()
    return (
        f"{harness}: {at_once} at once took {took:.1f} s ({2 * THINKING_S:g} s of them the model's); "
        f"{most / at_once:.0f} MiB a rollout in its sandbox, {(core_most - before) / at_once:.1f} MiB in the Core; "
        f"{cpu / at_once:.1f} CPU-seconds a rollout in its sandbox, {core_cpu / at_once:.2f} in the Core"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=10)
    at_once = parser.parse_args().at_once
    for harness in PROTOCOLS:
        print(why_missing(harness) or measure(harness, at_once), flush=True)


if __name__ == "__main__":
    main()
