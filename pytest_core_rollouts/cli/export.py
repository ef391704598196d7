"""`export FILE...` writes rows for a trainer: JSON lines on stdout and one line of counts on stderr."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pytest_core_rollouts.cli import CommandError
from pytest_core_rollouts.records.kept_folders import UPLOAD_HINT, kept_folder
from pytest_core_rollouts.records.record import RecordsError
from pytest_core_rollouts.training.captures import CaptureError, Exchange, check_tokens, exchanges
from pytest_core_rollouts.training.groups import (
    METHODS,
    Choice,
    Group,
    Row,
    Sample,
    Selection,
    counted,
    read_rows,
    select,
)
from pytest_core_rollouts.training.lines import conversation_lines, group_lines, sequence_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="JSONL of a run; several are merged")
    parser.add_argument(
        "--format",
        choices=("groups", "messages", "sequences"),
        required=True,
        help="groups: one line per group, with advantages; messages: one line per rollout, with its conversation; "
        "sequences: one line per token sequence (with --capture)",
    )
    parser.add_argument(
        "--advantage",
        choices=METHODS,
        default=METHODS[0],
        help="grpo: (r - mean) / std of the group (default); dr-grpo: r - mean",
    )
    parser.add_argument("--mask-timeouts", action="store_true", help="treat timeouts as missing instead of reward 0")
    parser.add_argument("--drop-incomplete", action="store_true", help="leave out groups with a missing sample")
    parser.add_argument(
        "--drop-signal-free", action="store_true", help="leave out groups in which all rewards are equal"
    )
    parser.add_argument("--run", metavar="RUN_ID", help="only this run")
    parser.add_argument(
        "--label", metavar="KEY=VALUE", action="append", default=[], help="only rows with this label; repeatable"
    )
    parser.add_argument(
        "--capture",
        metavar="DIR",
        type=Path,
        help="use the model requests saved in this folder (with --format groups or sequences)",
    )
    parser.add_argument(
        "--require-token-ids",
        action="store_true",
        help="fail unless every request has token ids (with --capture; sequences always do)",
    )
    parser.add_argument(
        "--no-text",
        action="store_true",
        help="leave the text of requests and replies empty (with --format groups --capture)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the lines and return 0. Raises CommandError before the first line is written."""
    choice = _choice(arguments)
    _check_capture_options(arguments)
    try:
        selection = _select(arguments.files, choice, items=arguments.format == "messages")
        counts = Counter[str]()
        _write(_lines(arguments, selection, counts))
    except (RecordsError, CaptureError) as error:
        raise CommandError.of_records(error) from None
    print(f"exported {selection.counts}{_counts_text(counts)}", file=sys.stderr)
    return 0


def _counts_text(counts: Counter[str]) -> str:
    """Return what was counted while lines of sequences were written; "" for other lines."""
    if not counts:
        return ""
    rate = f" ({counts['sequences'] / counts['rollouts']:.2f} per rollout)" if counts["rollouts"] else ""
    silent = f"; {counted(counts['silent'], 'rollout')} made no request" if counts["silent"] else ""
    return (
        f"; {counted(counts['rollouts'], 'rollout')} with {counted(counts['requests'], 'model request')} in "
        f"{counted(counts['sequences'], 'sequence')}{rate}{silent}"
    )


def _choice(arguments: argparse.Namespace) -> Choice:
    pairs = [text.partition("=") for text in arguments.label]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise CommandError(f"--label: expected KEY=VALUE, got {key!r}")
    return Choice(
        method=arguments.advantage,
        mask_timeouts=arguments.mask_timeouts,
        drop_incomplete=arguments.drop_incomplete,
        drop_signal_free=arguments.drop_signal_free,
        run_id=arguments.run,
        labels={key: value for key, _, value in pairs},
    )


def _check_capture_options(arguments: argparse.Namespace) -> None:
    if arguments.no_text and (arguments.format != "groups" or arguments.capture is None):
        raise CommandError("--no-text: requires --format groups and --capture DIR, whose requests have the text")
    if arguments.capture is None:
        if arguments.format == "sequences":
            raise CommandError("--format sequences: requires --capture DIR, because rows have no tokens")
        if arguments.require_token_ids:
            raise CommandError("--require-token-ids: requires --capture DIR, because rows have no tokens")
        return
    if arguments.format == "messages":
        raise CommandError("--capture: requires --format groups or sequences; conversations only use the rows")
    if not arguments.capture.is_dir():
        raise CommandError(f"--capture: {arguments.capture} is not a folder")


def _select(paths: Sequence[Path], choice: Choice, *, items: bool) -> Selection:
    twice = next((path for index, path in enumerate(paths) if path.resolve() in _resolved(paths[:index])), None)
    if twice is not None:
        raise CommandError(f"{twice} was given twice; remove one of them")
    rows = read_rows(paths, items=items)
    if not any(choice.accepts(row.record) for row in rows):
        raise CommandError(f"no {'matching ' if rows else ''}rows in {', '.join(map(str, paths))}{_found(rows)}")
    return select(rows, choice)


def _resolved(paths: Iterable[Path]) -> set[Path]:
    return {path.resolve() for path in paths}


def _found(rows: Iterable[Row]) -> str:
    runs = sorted({row.record.run_id for row in rows})
    labels = sorted({f"{key}={value}" for row in rows for key, value in row.record.labels.items()})
    return "".join(f"; {what}: {', '.join(have)}" for what, have in (("runs", runs), ("labels", labels)) if have)


def _lines(arguments: argparse.Namespace, selection: Selection, counts: Counter[str]) -> Iterator[bytes]:
    groups, folder = selection.groups, arguments.capture
    if arguments.format == "messages":
        _check_items(groups)
        return conversation_lines(groups)
    if folder is None:
        return group_lines(groups)
    _check_captures(groups, folder, tokens=arguments.require_token_ids or arguments.format == "sequences")
    if arguments.format == "sequences":
        return sequence_lines(groups, partial(_exchanges, folder), counts)
    return group_lines(groups, partial(_exchanges, folder), text=not arguments.no_text)


def _check_items(groups: Iterable[Group]) -> None:
    for sample in _used(groups):
        if not sample.row.has_items:
            raise CommandError(
                f"{sample.row.path}: the row of {sample.record.rollout_id} has no Items; "
                "either the run used --rollout-items none, "
                f"or {kept_folder(sample.row.path)} is missing ({UPLOAD_HINT})"
            )


def _check_captures(groups: Sequence[Group], folder: Path, *, tokens: bool) -> None:
    """Check the captures before a line is written. Raises CaptureError.

    An agent may make no request at all. But then it used no tokens, and other rollouts of its run made some.
    """
    found: Counter[str] = Counter()
    for sample in _used(groups):
        record, number = sample.record, 0
        for number, exchange in enumerate(_exchanges(folder, sample), 1):
            if tokens:
                check_tokens(exchange, f"{folder}: request {number} of {record.rollout_id}")
        if tokens and not number and record.tokens:
            raise CaptureError(
                f"{folder}: no requests of {record.rollout_id} found, but it used {record.tokens:,} tokens; "
                "select the run that was captured with --run"
            )
        found[record.run_id] += number
    if groups and not found.total():
        raise CaptureError(f"{folder}: no requests of these rollouts found; check that it is the folder of this run")
    if tokens and (missing := sorted(run for run, count in found.items() if not count)):
        raise CaptureError(
            f"{folder}: no requests of run {missing[0]} found; select the run that was captured with --run"
        )


def _exchanges(folder: Path, sample: Sample) -> Iterator[Exchange]:
    return exchanges(folder, sample.record.rollout_id, sample.record.session_id)


def _used(groups: Iterable[Group]) -> Iterator[Sample]:
    return (sample for group in groups for sample in group.samples if not sample.masked)


def _write(lines: Iterable[bytes]) -> None:
    sys.stdout.flush()
    for line in lines:
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
