"""Gates: what the exit code of a run should be, and why."""
