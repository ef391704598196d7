"""Numbers from rows: summaries, comparisons, statistics, gates."""
