"""One rollout's life, from its Session's creation to its deletion."""
