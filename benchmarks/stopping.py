"""What `--rollout-stop` saves, and how often its verdict differs from the whole run's, in simulated runs.

python benchmarks/stopping.py [--runs 2000]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.early_stopping import Suite, near, spent_and_wrong

RISKS = (0.01, 0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    print("| tasks x samples | gate | true mean | risk | rollouts spent | other verdict | one rollout from the gate |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for tasks, samples, least in ((30, 4, 0.75), (30, 8, 0.75), (10, 4, 0.75), (100, 4, 0.75), (30, 4, 0.9)):
        for mean in (0.6, 0.75, 0.9):
            suite = Suite(tasks, samples, mean)
            for risk in RISKS:
                spent, wrong = spent_and_wrong(suite, least, risk, runs)
                close = "-"
                if mean == least:
                    close = f"{spent_and_wrong(suite, least, risk, runs, only=near(least, suite))[1]:.2%}"
                row = f"{tasks} x {samples} | mean>={least} | {mean} | {risk:.0%} | {spent:.2f} | {wrong:.2%} | {close}"
                print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
