"""Are tasks sound? The checks of `python -m pytest_core_rollouts check`."""
