"""The peer: the described single script, as one would write it from its description.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python benchmarks/peer_script.py ROLLOUTS CONCURRENCY

The `openai` client, a thread per rollout in flight, the Turn list polled once a second. It needs `openai==3.13.0`.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from openai import OpenAI


def rollout(client: OpenAI, number: int) -> dict[str, object]:
    """One Session, from its creation to its deletion."""
    sessions = client.beta.agents.sessions
    session = sessions.create(
        environment={"type": "openai_hosted", "network": {"access": "disabled"}},
        input="do it",
        metadata={"rollout_id": str(number)},
    )
    while True:
        turns = sessions.turns.list(session.id, order="desc", limit=1).data
        if turns and turns[0].status in ("completed", "failed", "cancelled"):
            break
        time.sleep(1)
    answer = None
    for artifact in sessions.artifacts.list(session.id):
        if artifact.path == "/workspace/outputs/answer.json":
            answer = json.loads(sessions.artifacts.content(artifact.id, session_id=session.id).read())
    items = [item.model_dump(mode="json") for item in sessions.items.list(session.id, order="asc", limit=100)]
    sessions.delete(session.id)
    return {"number": number, "reward": float(answer == {"x": 1}), "items": items}


def main(rollouts: int, concurrency: int) -> None:
    """Run all of them, a line each."""
    client = OpenAI()
    with ThreadPoolExecutor(concurrency) as pool, open("peer.jsonl", "w", encoding="utf-8") as out:  # noqa: PTH123
        for future in as_completed([pool.submit(rollout, client, number) for number in range(rollouts)]):
            out.write(json.dumps(future.result()) + "\n")
            out.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
