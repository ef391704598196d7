"""A pytest session that runs rollouts: its loop, its workers, its end."""
