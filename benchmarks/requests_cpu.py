"""CPU of one request: the client's process only, against a fake Core in its own process.

    python benchmarks/requests_cpu.py [REQUESTS] [ROUNDS]

Prints one line of JSON: milliseconds of CPU (user and system) per request, as the median of the rounds.
To compare two versions, run it by turns with the Python of each.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from pytest_core_rollouts.agents_api import Client

HERE = Path(__file__).parent
BODY = {"environment": {"type": "openai_hosted", "network": {"access": "disabled"}}, "input": "Add the numbers."}


async def measure(base_url: str, api_key: str, requests: int, rounds: int) -> dict[str, float]:
    """Send small GET requests one after the other, on one connection."""
    start = time.process_time()
    async with Client(base_url, api_key) as client:
        session = await client.create_session(BODY, idempotency_key="key")
        first = time.process_time() - start
        costs = []
        for _ in range(rounds):
            start = time.process_time()
            for _ in range(requests):
                await client.get_session(session["id"])
            costs.append(1000 * (time.process_time() - start) / requests)
        many_start = time.process_time()
        clients = [Client(base_url, api_key) for _ in range(200)]
        await asyncio.gather(*(each.check() for each in clients))
        for each in clients:
            await each.aclose()
        connected = 1000 * (time.process_time() - many_start) / len(clients)
    return {
        "ms_per_request": round(statistics.median(costs), 3),
        "ms_first_request": round(1000 * first, 1),
        "ms_per_new_client": round(connected, 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def main() -> None:
    """Start a fake Core, measure, and print the figures."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    command = [sys.executable, str(HERE / "core_server.py"), "1000", "1000"]
    core = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert core.stdin is not None
    assert core.stdout is not None
    base_url, api_key = core.stdout.readline().split()
    try:
        print(json.dumps(asyncio.run(measure(base_url, api_key, requests, rounds))))
    finally:
        core.kill()
        core.wait()


if __name__ == "__main__":
    main()
