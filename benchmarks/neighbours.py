"""What hostile agents cost other rollouts: wall time of two honest neighbors, with and without each agent.

    python benchmarks/neighbours.py [KIND ...] [--only NAME] [--rounds 3]

Kinds are the tables of `tests/support/hostile`. Three rollouts are in flight: two honest ones and the hostile agent,
or one that sleeps in its place. Runs with and without alternate; the medians are compared. Two neighbors share the
processors with the agent, so an agent that computes all the time should cost them what any other rollout would cost.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.hostile.agents import Hostile
from tests.support.hostile.answers import ANSWERS
from tests.support.hostile.kernel import KERNEL
from tests.support.hostile.memory import MEMORY
from tests.support.hostile.outputs import OUTPUTS
from tests.support.hostile.processes import PROCESSES
from tests.support.hostile.runs import run, write_project

KINDS = {"outputs": OUTPUTS, "answers": ANSWERS, "processes": PROCESSES, "kernel": KERNEL, "memory": MEMORY}


def neighbor_seconds(agents: Sequence[Hostile], *, idle: bool) -> dict[str, list[float]]:
    """Seconds of the Turns of each agent's neighbors."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "project")
        write_project(folder, agents, idle=idle)
        finished = run(folder, "--harness", "oracle", "--rollout-concurrency", "3", seconds=1800)
    return {
        agent.name: [row["timings"]["turn"] for row in finished.neighbors(agent.name) if row["reward"] == 1.0]
        for agent in agents
    }


def compare(agents: Sequence[Hostile], rounds: int) -> None:
    with_agent: dict[str, list[float]] = defaultdict(list)
    without: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for idle, seen in ((True, without), (False, with_agent)):
            for name, seconds in neighbor_seconds(agents, idle=idle).items():
                seen[name] += seconds
    print(f"{'agent':24} {'without s':>9} {'with s':>8} {'ratio':>6}")
    for agent in agents:
        if with_agent[agent.name] and without[agent.name]:
            before, after = (statistics.median(seen[agent.name]) for seen in (without, with_agent))
            print(f"{agent.name:24} {before:9.2f} {after:8.2f} {after / before:6.2f}", flush=True)
        else:
            print(f"{agent.name:24} a neighbor has no reward", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all by default")
    parser.add_argument("--only", metavar="NAME", help="one agent")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for kind in options.kinds or KINDS:
        if kind not in KINDS:
            parser.error(f"unknown kind {kind!r}; expected one of {', '.join(KINDS)}")
        agents = [agent for agent in KINDS[kind] if options.only in (None, agent.name)]
        if agents:
            print(f"\n{kind}", flush=True)
            compare(agents, options.rounds)


if __name__ == "__main__":
    main()
