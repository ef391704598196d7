"""`report FILE...`: the table of one run, or of several merged, again from their rows."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_core_rollouts.baseline import comparisons
from pytest_core_rollouts.cli import CommandError, results
from pytest_core_rollouts.gate import Gate, GateError, judge, parse_gate
from pytest_core_rollouts.report.changes import changes
from pytest_core_rollouts.report.markdown import markdown
from pytest_core_rollouts.report.summary import summarize

HELP = "Print the report of one or more JSONL files, their runs merged, as Markdown."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="JSONL of a run")
    parser.add_argument("--run", metavar="RUN_ID", help="only the rows of this run")
    parser.add_argument("--baseline", metavar="FILE", type=Path, help="JSONL of an earlier run to compare with")
    parser.add_argument(
        "--gate", metavar="EXPR", action="append", default=[], help="exit 1 unless it passes; repeatable"
    )


def run(arguments: argparse.Namespace) -> int:
    """0; 1 where a gate does not pass."""
    gates = _gates(arguments)
    rows = results.read(arguments.files, arguments.run)
    baseline = None if arguments.baseline is None else results.baseline(arguments.baseline)
    summary, judged = summarize(rows), summarize(rows, judged=True)
    judgments = judge(gates, judged, baseline)
    compared = comparisons(judged, baseline)
    results.write(markdown(summary, verdicts=list(map(str, judgments)), appendix=[changes(*one) for one in compared]))
    return 0 if all(judgment.passed for judgment in judgments) else 1


def _gates(arguments: argparse.Namespace) -> list[Gate]:
    try:
        gates = list(map(parse_gate, arguments.gate))
    except GateError as error:
        raise CommandError(f"--gate: {error}") from None
    for gate in gates:
        if gate.needs_baseline and arguments.baseline is None:
            raise CommandError(f"--gate {gate.expression} compares with an earlier run; name its JSONL with --baseline")
    return gates
