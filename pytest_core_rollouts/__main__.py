"""`python -m pytest_core_rollouts`: see `cli`."""

from __future__ import annotations

import sys

from pytest_core_rollouts.cli import main

if __name__ == "__main__":
    sys.exit(main())
