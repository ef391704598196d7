"""`report FILE...` prints the report of one run, or of several merged, from their rows."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_core_rollouts.cli import CommandError
from pytest_core_rollouts.records.record import RecordsError, RolloutRecord
from pytest_core_rollouts.records.rows import file_order, read_records, require_agreement, require_regular_file, slim
from pytest_core_rollouts.report.by import CHOICES, changes_by, figures_by
from pytest_core_rollouts.report.changes import changes
from pytest_core_rollouts.report.html import HtmlReportError, write_html
from pytest_core_rollouts.report.markdown import markdown
from pytest_core_rollouts.report.verdicts import verdict_lines
from pytest_core_rollouts.results.comparison import (
    Baseline,
    comparisons,
    load_baseline,
    missing_rows,
    newest_versions,
)
from pytest_core_rollouts.results.gate import Judgment, judge
from pytest_core_rollouts.results.gate_forms import GateError, parse_gate, scope_problem
from pytest_core_rollouts.results.gate_kinds import Gate
from pytest_core_rollouts.results.prices import Prices, PricesError
from pytest_core_rollouts.results.scope import tags_of
from pytest_core_rollouts.results.scores import AgentScore
from pytest_core_rollouts.results.summary import Summary, summarize, summarize_rounds
from pytest_core_rollouts.text import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="JSONL of a run")
    parser.add_argument("--run", metavar="RUN_ID", help="only the rows of this run")
    parser.add_argument("--baseline", metavar="FILE", type=Path, help="JSONL of an earlier run to compare with")
    parser.add_argument(
        "--html", metavar="OUT", type=Path, help="also write the HTML report, with every trajectory, to this file"
    )
    parser.add_argument(
        "--html-items",
        metavar="N",
        type=positive,
        help="keep N Items of each trajectory in the HTML report, from both ends",
    )
    parser.add_argument("--hide-expected", action="store_true", help="leave expected values out of the HTML report")
    parser.add_argument(
        "--gate", metavar="EXPR", action="append", default=[], help="exit with 1 unless this gate passes; repeatable"
    )
    parser.add_argument(
        "--prices", metavar="FILE", type=Path, help="YAML or JSON with dollars per million tokens of each model"
    )
    add_allow_missing(parser)
    add_by(parser)


def add_allow_missing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-missing",
        action="store_true",
        help="accept planned rollouts and tasks of the baseline that have no row; verdicts name them",
    )


def add_by(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--by", choices=CHOICES, action="append", default=[], help="also print a table by tag or by agent; repeatable"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the report. Return 0, or 1 if a gate does not pass."""
    gates = _gates(arguments)
    if arguments.html is not None:
        _require_regular_files(arguments.files)
    prices = None if arguments.prices is None else load_prices(arguments.prices)
    files = read_files(arguments.files)
    rows = select_rows(files, arguments.run)
    baseline = None if arguments.baseline is None else _load_baseline(arguments)
    summary = summarize(rows, prices=prices)
    _require_scopes(gates, summary)
    judgments = judge(gates, summary, baseline, accepts_missing=arguments.allow_missing)
    summary = summarize_rounds(rows, prices=prices)
    compared = comparisons(summary, baseline)
    tables = [figures_by(summary, by) for by in arguments.by]
    tables += [changes_by(compared, by) for by in arguments.by if baseline is not None]
    write(
        markdown(
            summary,
            verdicts=[line for line, _ in verdict_lines(judgments)],
            appendix=[*tables, *(changes(*one) for one in compared)],
        )
    )
    if arguments.html is not None:
        _write_html(arguments, [path for path, _ in files], baseline, judgments, prices)
    return 0 if all(judgment.passed for judgment in judgments) else 1


def _require_regular_files(files: Iterable[Path]) -> None:
    """Raise CommandError for a pipe: the HTML report reads its rows more than once."""
    try:
        for path in files:
            require_regular_file(path)
    except RecordsError as error:
        raise CommandError(f"--html: {error}") from None


def positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def _write_html(
    arguments: argparse.Namespace,
    files: Sequence[Path],
    baseline: Baseline | None,
    judgments: Sequence[Judgment],
    prices: Prices | None,
) -> None:
    """Write the report and print its path and size to stderr, because stdout has the Markdown."""
    try:
        written = write_html(
            files,
            arguments.html,
            items_limit=arguments.html_items,
            baseline=baseline,
            run_id=arguments.run,
            hide_expected=arguments.hide_expected,
            judgments=judgments,
            prices=prices,
        )
    except (HtmlReportError, RecordsError) as error:
        raise CommandError(f"--html: {error}") from None
    print(written, file=sys.stderr)


def _gates(arguments: argparse.Namespace) -> list[Gate]:
    try:
        gates = list(map(parse_gate, arguments.gate))
    except GateError as error:
        raise CommandError(f"--gate: {error}") from None
    for gate in gates:
        if gate.needs_baseline and arguments.baseline is None:
            raise CommandError(f"--gate {gate.expression}: requires a baseline; add --baseline FILE")
    return gates


def load_prices(path: Path) -> Prices:
    try:
        return Prices.load(path)
    except PricesError as error:
        raise CommandError(f"--prices: {error}") from None


def _require_scopes(gates: Iterable[Gate], summary: Summary) -> None:
    """Raise CommandError for a gate whose scope has no task. Tasks without a row could have any tag."""
    for gate in gates:
        if summary.rows >= summary.planned and (problem := scope_problem(gate, tags_of(summary))) is not None:
            raise CommandError(f"--gate {gate.expression}: {problem}")


# Reading and writing, also for `compare`


def read_files(paths: Iterable[Path]) -> list[tuple[Path, list[RolloutRecord]]]:
    """Return each file with its rows, without large fields, in order of time. Raises CommandError."""
    files: list[tuple[Path, list[RolloutRecord]]] = []
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise CommandError(f"{path} was given twice; remove one of them")
        seen.add(path.resolve())
        try:
            files.append((path, [slim(record) for record in read_records(path, items=False)]))
            if len(files) > 1:
                require_agreement((file, row) for file, rows in files for row in rows)
        except RecordsError as error:
            raise CommandError.of_records(error) from None
    _note_repeated(rows for _, rows in files)
    return sorted(files, key=lambda file: file_order(*file))


def _note_repeated(files: Iterable[Iterable[RolloutRecord]]) -> None:
    """Say on stderr how many rollouts are in several files, which agree on them."""
    often = Counter(itertools.chain.from_iterable({row.rollout_id for row in rows} for rows in files))
    if repeated := sum(count > 1 for count in often.values()):
        print(f"{counted(repeated, 'rollout')} in several files, counted once", file=sys.stderr)


def select_rows(files: Sequence[tuple[Path, list[RolloutRecord]]], run_id: str | None = None) -> list[RolloutRecord]:
    """Return the rows of all files, or of one run in them. Raises CommandError if there are none."""
    rows = [row for _, of_file in files for row in of_file]
    known = sorted({row.run_id for row in rows})
    if run_id is not None:
        rows = [row for row in rows if row.run_id == run_id]
        if not rows:
            raise CommandError(f"no rows of run {run_id}; found runs: {', '.join(known) or 'none'}")
    if not rows:
        raise CommandError(f"{', '.join(str(path) for path, _ in files)}: no rows")
    return rows


def _load_baseline(arguments: argparse.Namespace) -> Baseline:
    """Read the baseline. Raises CommandError."""
    try:
        baseline = load_baseline(arguments.baseline)
    except RecordsError as error:
        raise CommandError(f"--baseline: {error}") from None
    if baseline.lacks and not arguments.allow_missing:
        raise CommandError(f"--baseline: {baseline.lacks}; {FINISH_OR_ALLOW}")
    return baseline


FINISH_OR_ALLOW = "finish that run with --rollout-resume, or accept this with --allow-missing"


def scores(named: str, *, whole: bool = False) -> tuple[str, Summary]:
    """Return the name and the summary of `FILE`, or of one agent in it for `FILE::AGENT`.

    If a task was changed between the runs of the file, only its newest version counts. Raises CommandError, with
    `whole` also if the file lacks planned rollouts.
    """
    file, _, label = named.partition("::")
    rows = select_rows(read_files([Path(file)]))
    if whole and (lacks := missing_rows(Path(file), rows)):
        raise CommandError(f"{lacks}; {FINISH_OR_ALLOW}")
    summary = summarize_rounds(newest_versions(rows))
    if not label:
        return Path(file).name, summary
    return f"{Path(file).name}::{label}", Summary((_pick(summary, label, file),), 0)


def _pick(summary: Summary, label: str, file: str) -> AgentScore:
    """Return the agent with this label or name. Raises CommandError."""
    for agent in summary.agents:
        if label in (agent.label, agent.name):
            return agent
    raise CommandError(
        f"{file}: unknown agent {label!r}; choose from {', '.join(agent.label for agent in summary.agents)}"
    )


def write(text: str) -> None:
    """Write to stdout in UTF-8, whatever the locale: the same rows give the same bytes everywhere."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8"))
    sys.stdout.buffer.flush()
