"""`python -m pytest_core_rollouts VERB ...`: what is done beside a run.

A verb is a module with `HELP` (one line), `add_arguments(parser)` and `run(arguments) -> int` (the exit code), and a
line in `VERBS`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

VERBS: Final = {
    "report": "pytest_core_rollouts.cli.report",
    "compare": "pytest_core_rollouts.cli.compare",
    "export": "pytest_core_rollouts.cli.export",
    "reap": "pytest_core_rollouts.cli.reap",
    "check": "pytest_core_rollouts.cli.check",
    "new-task": "pytest_core_rollouts.cli.new_task",
}

USAGE_ERROR: Final = 4
"""The exit code for arguments or files that make no sense; pytest's own."""

INTERRUPTED: Final = 2
"""The exit code after Ctrl-C; pytest's own."""


class CommandError(Exception):
    """What is wrong with the arguments or files, in one line that says what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; its exit code. What cannot be done is one line on stderr and exit code 4."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_core_rollouts",
        description="What is done beside a run: with its results, with what it left, with tasks.",
        epilog="Each verb has a --help of its own. Rollouts are run by pytest: see `pytest --help`, agent rollouts.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, module in VERBS.items():
        verb = import_module(module)
        added = verbs.add_parser(name, help=verb.HELP, description=verb.HELP)
        verb.add_arguments(added)
        added.set_defaults(_run=verb.run)
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as ended:
        return USAGE_ERROR if ended.code else 0
    try:
        code: int = arguments._run(arguments)
        sys.stdout.flush()
    except CommandError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        _drop_output()
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output has enough, such as `head`
        _drop_output()
        return 0
    except OSError as error:  # such as a full disk; 1 would read as a verdict
        _drop_output()
        print(f"ERROR: {error.filename or 'the output'}: {error.strerror or error}", file=sys.stderr)
        return USAGE_ERROR
    return code


def _drop_output() -> None:
    """What stdout still holds goes nowhere: Python would try to write it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
