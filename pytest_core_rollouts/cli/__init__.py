"""`core-rollouts VERB`, or `python -m pytest_core_rollouts VERB`: work with tasks, results and leftover Sessions.

A verb is a module of its name with `add_arguments(parser)` and `run(arguments) -> int` (the exit code), and a line in
`VERBS`. Only the module of the verb in use is imported: most verbs need neither pytest nor the embedded Core.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from pytest_core_rollouts.records.record import ContradictingRecords

VERBS: Final = {
    "report": "Print the report of one or more JSONL files as Markdown, merging their runs; also write HTML.",
    "compare": "Compare B with A, task by task: two JSONL files, or agents in them. Without B, compare A's agents.",
    "history": "Show runs over time: figures run by run, where they changed, tasks that are solved sometimes.",
    "export": "Write the rollouts of one or more JSONL files for training: groups with advantages, or conversations.",
    "reap": "Cancel and delete the Sessions that a run left on its Core, and list those that can't be deleted.",
    "check": "Find faults in tasks, without an agent. Exit code: 0 without findings, 1 with some, 2 if it can't check.",
    "new-task": "Create the folder of a new task, with three files for you to edit.",
}
"""Each verb with its help text."""

SCRIPT: Final = "core-rollouts"
"""The name of the installed program."""

USAGE_ERROR: Final = 4
"""The exit code for invalid arguments or files, as in pytest."""

INTERRUPTED: Final = 2
"""The exit code after Ctrl-C, as in pytest."""


NOT_COMPARABLE: Final = 2
"""The exit code for files that can be read, but not be merged or compared."""


class CommandError(Exception):
    """Invalid arguments or files. `str()` is one line: what is wrong and what to do. `code` is the exit code."""

    def __init__(self, problem: str, code: int = USAGE_ERROR) -> None:
        super().__init__(problem)
        self.code = code

    @classmethod
    def of_records(cls, error: Exception) -> CommandError:
        """Return the error for files of rows."""
        return cls(str(error), NOT_COMPARABLE if isinstance(error, ContradictingRecords) else USAGE_ERROR)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code.

    A usage error, such as a missing verb or file, is one line on stderr and exit code 4.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog=SCRIPT if Path(sys.argv[0]).name == SCRIPT else "python -m pytest_core_rollouts",
        description="Work with tasks, results and leftover Sessions. To run rollouts, use pytest.",
        epilog="For the options of a verb, see VERB --help. For those of a run, see `pytest --help`, agent rollouts.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for name, text in VERBS.items():
        added = verbs.add_parser(name, help=text, description=text)
        if name == next(iter(args), None):
            verb = import_module(f"{__name__}.{name.replace('-', '_')}")
            verb.add_arguments(added)
            added.set_defaults(_run=verb.run)
    if not args:
        parser.print_help(sys.stderr)
        return USAGE_ERROR
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as ended:
        return USAGE_ERROR if ended.code else 0
    try:
        code: int = arguments._run(arguments)
        sys.stdout.flush()
    except CommandError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        _drop_output()
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has closed it, such as `head`
        _drop_output()
        return 0
    except OSError as error:  # such as a full disk; exit code 1 would look like a verdict
        _drop_output()
        print(f"ERROR: {error.filename or 'the output'}: {error.strerror or error}", file=sys.stderr)
        return USAGE_ERROR
    return code


def _drop_output() -> None:
    """Discard what stdout still buffers: Python would try to write it again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
