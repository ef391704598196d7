"""One row of JSONL per rollout, and the files beside it."""
