"""`core-rollouts` and `python -m pytest_core_rollouts`: see `cli`."""

from __future__ import annotations

import sys
import warnings

from pytest_core_rollouts.cli import main


def one_line(message: Warning | str, *_: object) -> str:
    """A warning without the place in our code."""
    return f"WARNING: {message}\n"


def run() -> int:
    """Run the verb of the command line and return the exit code."""
    warnings.formatwarning = one_line  # type: ignore[assignment]  # it has more parameters, which are not used
    return main()


if __name__ == "__main__":
    sys.exit(run())
