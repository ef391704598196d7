"""A fast fake Core in its own process, for benchmarks: every Turn takes a random time between two given ones.

    python benchmarks/core_server.py MIN_SECONDS MAX_SECONDS [ITEM_BYTES]

Prints its base URL and key, then, when its standard input closes, what it saw, as JSON: Sessions, requests, deletions,
CPU, the median from a Turn's end to its Session's deletion (which comes once the row is on disk), and Turns that ended
per second, the first and the last tenth left out.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.fake_core import FakeCore, Script


def main(least: float, most: float, item_bytes: int) -> None:
    """Serve until standard input closes."""
    random.seed(1)
    items = [{"id": f"item_{number}", "type": "message", "role": "assistant", "content": []} for number in range(3)]
    if item_bytes:
        items.append({"id": "item_3", "type": "message", "role": "assistant", "content": [{"text": "x" * item_bytes}]})

    def script(body: object) -> Script:
        return Script(turn_seconds=random.uniform(least, most), answer=b'{"x": 1}', items=items)

    with FakeCore(script=script, record=False) as core:
        print(core.base_url, core.api_key, flush=True)
        sys.stdin.read()
        sessions = core.sessions.values()
        histories = [{what: at for at, what in session.history} for session in sessions]
        ends = sorted(each["completed"] for each in histories if "completed" in each)
        middle = ends[len(ends) // 10 : -len(ends) // 10]
        print(
            json.dumps(
                {
                    "sessions": len(sessions),
                    "deleted": sum(session.deleted for session in sessions),
                    "requests": sum(core.counts.values()),
                    "completed_to_deleted_s": statistics.median(
                        each["deleted"] - each["completed"] for each in histories
                    ),
                    "steady_per_s": (len(middle) - 1) / (middle[-1] - middle[0]),
                    "cpu_s": round(time.process_time(), 2),
                }
            )
        )


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
