"""One row of JSONL per rollout, and the files next to it."""
