"""`compare A B` compares two results task by task; `compare A` compares the agents of one."""

from __future__ import annotations

import argparse

from pytest_core_rollouts.cli import NOT_COMPARABLE, CommandError
from pytest_core_rollouts.cli.report import add_allow_missing, add_by, scores, write
from pytest_core_rollouts.report.by import changes_by
from pytest_core_rollouts.report.changes import changes
from pytest_core_rollouts.results.comparison import Comparison, compare, compared_agents, counterpart
from pytest_core_rollouts.results.summary import Summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "JSONL of a run, or FILE::AGENT for one agent of it"
    parser.add_argument("a", metavar="A", help=f"before: {what}")
    parser.add_argument(
        "b", metavar="B", nargs="?", help=f"after: {what}; without it, A's other agents are compared with its first"
    )
    add_allow_missing(parser)
    add_by(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison and return 0, whatever the difference: for an exit code use `report --gate`."""
    name, before = scores(arguments.a, whole=arguments.b is not None and not arguments.allow_missing)
    compared = _within(name, before) if arguments.b is None else _between(name, before, *scores(arguments.b))
    if not any(comparison.tasks for comparison, _, _ in compared):
        raise CommandError(
            "nothing can be compared: no unchanged task has a result on both sides; compare runs of the same tasks",
            NOT_COMPARABLE,
        )
    write("\n".join([*(changes_by(compared, by) for by in arguments.by), *(changes(*one) for one in compared)]))
    return 0


_Named = tuple[Comparison, str, str]


def _within(name: str, summary: Summary) -> list[_Named]:
    if len(summary.agents) == 1:
        raise CommandError(f"{name}: has only one agent, {summary.agents[0].label}; add a second file to compare with")
    return compared_agents(summary)


def _between(name: str, before: Summary, other: str, after: Summary) -> list[_Named]:
    pairs = [(counterpart(agent, before, after), agent) for agent in after.agents]
    single = len(pairs) == 1
    compared = [
        (
            compare(one, two),
            name if single else f"{one.label} in {name}",
            other if single else f"{two.label} in {other}",
        )
        for one, two in pairs
        if one is not None
    ]
    if not compared:
        has = [", ".join(agent.label for agent in summary.agents) for summary in (before, after)]
        raise CommandError(
            f"no agent is in both files: {name} has {has[0]}, {other} has {has[1]}; "
            f"select two with {name}::AGENT {other}::AGENT"
        )
    return compared
