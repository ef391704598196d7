"""`history DIR|FILE...` shows runs over time. The JSONL files are the history; nothing else is stored."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_core_rollouts.cli import INTERRUPTED, CommandError
from pytest_core_rollouts.cli.report import load_prices, positive, write
from pytest_core_rollouts.records.record import RecordsError, RolloutRecord
from pytest_core_rollouts.records.rows import file_order, read_records, require_agreement, slim_rows
from pytest_core_rollouts.report.history import BARS, PLAIN_BARS, history_text, write_history_html
from pytest_core_rollouts.report.html import HtmlReportError
from pytest_core_rollouts.results.history import histories

UNREADABLE = INTERRUPTED
"""The exit code if no file has rows."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", metavar="DIR|FILE", nargs="+", type=Path, help="JSONL of runs, or a folder with such files"
    )
    parser.add_argument("--html", metavar="OUT", type=Path, help="also write the history as an HTML page to this file")
    parser.add_argument("--prices", metavar="FILE", type=Path, help="prices of models: also show what each run cost")
    parser.add_argument("--last", metavar="N", type=positive, default=60, help="only the newest N runs (default: 60)")


def run(arguments: argparse.Namespace) -> int:
    """Print the history. Return 0, or 2 if no file has rows."""
    prices = None if arguments.prices is None else load_prices(arguments.prices)
    agents = histories(_rows(_files(arguments.paths)), arguments.last, prices)
    if not agents:
        print(f"ERROR: no rows of runs in {', '.join(map(str, arguments.paths))}", file=sys.stderr)
        return UNREADABLE
    write(history_text(agents, bars=BARS if _can_print(BARS) else PLAIN_BARS))
    if arguments.html is not None:
        try:
            write_history_html(agents, arguments.html)
        except HtmlReportError as error:
            raise CommandError(f"--html: {error}") from None
    return 0


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files, and those directly in the folders. Raises CommandError for a path that does not exist."""
    for path in paths:
        if path.is_dir():
            yield from sorted(one for one in path.glob("*.jsonl") if one.is_file())
        elif path.exists():
            yield path
        else:
            raise CommandError(f"{path}: no such file or folder")


def _rows(paths: Iterable[Path]) -> list[RolloutRecord]:
    """Return the rows of all files, in order of time. Files without rows are named on stderr and passed over."""
    files: dict[Path, list[RolloutRecord]] = {}
    for path in paths:
        try:
            rows = list(slim_rows(read_records(path, items=False)))
        except RecordsError as error:
            print(f"passed over: {error}", file=sys.stderr)
            continue
        if rows:
            files[path.resolve()] = rows
        else:
            print(f"passed over: {path}: no rows", file=sys.stderr)
    try:
        require_agreement((path, row) for path, rows in files.items() for row in rows)
    except RecordsError as error:
        raise CommandError.of_records(error) from None
    return [row for _, rows in sorted(files.items(), key=lambda one: file_order(*one)) for row in rows]


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
