"""Rollouts in flight: wall time, CPU and memory of our process against its peers, in one run.

    python benchmarks/in_flight.py [CASE ...] [--peer-python PYTHON]

Cases are named below. Peers: `script` is `peer_script.py` (PYTHON has the `openai` package), `one-at-a-time` is pytest
with `-n 64`. A fake Core in its own process serves them all; its CPU is not counted, but it shares the machine.
Run it in a virtual environment of users, with nothing but the project: plugins of others cost CPU too.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """Rollouts, each with a Turn of `least` to `most` seconds, `in_flight` at once; the peers to compare with."""

    rollouts: int
    least: float
    most: float
    in_flight: int
    peers: tuple[str, ...] = ()
    workers: int = 0
    item_bytes: int = 0

    @property
    def places(self) -> int:
        """Rollouts in flight over all processes."""
        return self.in_flight * max(1, self.workers)

    @property
    def ideal(self) -> float:
        """Seconds that only the Turns take if no place is ever free: mean length times rollouts over places."""
        return self.rollouts * (self.least + self.most) / 2 / self.places

    @property
    def floor(self) -> float:
        """Seconds that the server's own Turns take with every place filled the moment it is free.

        The server draws lengths in the order of the creates, from the same seed: what remains over this is ours.
        """
        random.seed(1)
        free = [0.0] * self.places
        for _ in range(self.rollouts):
            heapq.heapreplace(free, free[0] + random.uniform(self.least, self.most))
        return max(free)


CASES = {
    "thousand": Case(1000, 8, 12, 500, ("script", "one-at-a-time")),
    "rate": Case(4000, 2, 2, 200),
    "rate-n2": Case(4000, 2, 2, 100, workers=2),
    "latency": Case(200, 1, 2, 10),
    "three-thousand": Case(3000, 20, 40, 1500),
    "flat-memory": Case(20000, 1, 2, 200, item_bytes=100_000),
    "small": Case(100, 0.5, 1.5, 50, ("script",)),
}


class Core:
    """The fake Core's process."""

    def __init__(self, case: Case) -> None:
        command = [sys.executable, str(HERE / "core_server.py"), str(case.least), str(case.most), str(case.item_bytes)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.base_url, self.api_key = self.process.stdout.readline().split()

    def close(self) -> dict[str, float]:
        """What it saw."""
        out, _ = self.process.communicate("")
        seen: dict[str, float] = json.loads(out)
        return seen


def project(folder: Path) -> None:
    """One task; the number of samples makes the rollouts."""
    task = folder / "tasks" / "task"
    task.mkdir(parents=True)
    (task / "instruction.md").write_text("Do it.")
    (task / "expected.json").write_text('{"x": 1}')


def command(what: str, case: Case, peer_python: str) -> list[str]:
    """The command line that runs the case."""
    pytest = [sys.executable, "-m", "pytest", "-q", "--harness", "codex", "--samples", str(case.rollouts)]
    if what == "script":
        return [peer_python, str(HERE / "peer_script.py"), str(case.rollouts), str(case.in_flight)]
    if what == "one-at-a-time":
        return [*pytest, "-n", "64"]
    workers = ["-n", str(case.workers)] if case.workers else []
    return [*pytest, "--rollout-concurrency", str(case.in_flight), *workers]


def measure(what: str, case: Case, peer_python: str) -> dict[str, float]:
    """Run one contender on its own Core."""
    core = Core(case)
    with tempfile.TemporaryDirectory() as folder:
        project(Path(folder))
        env = {**os.environ, "OPENAI_BASE_URL": core.base_url, "OPENAI_API_KEY": core.api_key}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process compiles everything again
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        timed = ["/usr/bin/time", "-f", "%M", "-o", f"{folder}/peak", *command(what, case, peer_python)]
        done = subprocess.run(timed, cwd=folder, env=env, capture_output=True, text=True, check=False)
        wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            print(done.stdout[-3000:], done.stderr[-3000:], file=sys.stderr)
        peak = int(Path(folder, "peak").read_text().split()[-1])
    seen = core.close()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "exit": done.returncode,
        "wall_s": round(wall, 2),
        "wall_over_ideal": round(wall / case.ideal, 3),
        "floor_over_ideal": round(case.floor / case.ideal, 3),
        "rollouts_per_s": round(case.rollouts / wall, 1),
        "steady_per_s": round(seen["steady_per_s"], 1),
        "latency_ms_median": round(1000 * seen["completed_to_deleted_s"], 1),
        "cpu_ms_per_rollout": round(1000 * cpu / case.rollouts, 2),
        "peak_mb_largest_process": round(peak / 1024, 1),
        "requests_per_rollout": round(seen["requests"] / case.rollouts, 2),
        "sessions": seen["sessions"],
        "core_cpu_ms_per_rollout": round(1000 * seen["cpu_s"] / case.rollouts, 2),
        "left": seen["sessions"] - seen["deleted"],
    }


def main() -> None:
    """Measure the cases named, and print a line of JSON for each contender."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["small"], choices=[*CASES, []])
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--no-peers", action="store_true")
    args = parser.parse_args()
    for name in args.cases:
        case = CASES[name]
        for what in ("ours", *(() if args.no_peers else case.peers)):
            print(json.dumps({"case": name, "who": what, **measure(what, case, args.peer_python)}), flush=True)


if __name__ == "__main__":
    main()
