"""The results that a run is measured against: a JSONL of an earlier one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_core_rollouts.records.errors import RecordsError
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import read_records
from pytest_core_rollouts.results.comparison import Comparison, compare, counterpart
from pytest_core_rollouts.results.summary import AgentScore, Summary, agent_key, summarize


@dataclass(frozen=True)
class Baseline:
    """Where the rows came from, and what they amount to."""

    path: Path
    summary: Summary

    def of(self, agent: AgentScore, own: Summary) -> AgentScore | None:
        """The agent's results in the baseline; see `comparison.counterpart`."""
        return counterpart(agent, self.summary, own)

    def comparisons(self, summary: Summary) -> list[Comparison]:
        """For each agent of `summary` that the baseline has."""
        pairs = [(self.of(agent, summary), agent) for agent in summary.agents]
        return [compare(before, agent) for before, agent in pairs if before is not None]


def load_baseline(path: Path, *, but: str | None = None) -> Baseline:
    """Read the file, without the rows of the run `but`, and without expected failures.

    Of a task that was changed between runs of the file only the newest version counts. Raises RecordsError, also for a
    file without a single reward.
    """
    rows = [record for record in read_records(path, items=False) if record.run_id != but]
    summary = summarize(newest_versions(rows), judged=True)
    if not any(agent.graded for agent in summary.agents):
        raise RecordsError(f"{path}: holds no graded rollout to compare with")
    return Baseline(path, summary)


def newest_versions(rows: Iterable[RolloutRecord]) -> Iterator[RolloutRecord]:
    """The rows whose task is as in the newest row of that task and agent: an older version was another task."""
    rows = list(rows)
    newest: dict[Any, tuple[str, str]] = {}
    for row in sorted(rows, key=lambda row: (row.started_at or "", row.run_id)):
        newest[_of(row)] = row.input_digest, row.grading_digest
    return (row for row in rows if newest[_of(row)] == (row.input_digest, row.grading_digest))


def _of(row: RolloutRecord) -> tuple[Any, str]:
    return agent_key(row), row.task


def comparisons(judged: Summary, baseline: Baseline | None) -> list[tuple[Comparison, str, str]]:
    """Of a run with the baseline, else of its further agents with its first; each with what its sides are called."""
    if baseline is not None:
        name = baseline.path.name
        return [
            (one, name, "this run")
            if len(judged.agents) == 1
            else (one, f"{one.before.label} in {name}", one.after.label)
            for one in baseline.comparisons(judged)
        ]
    first, *others = judged.agents or (None,)
    return [(compare(first, other), first.label, other.label) for other in others if first is not None]
