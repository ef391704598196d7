"""Files of results, as the verbs name them: `runs/x.jsonl`, or one agent's of it, `runs/x.jsonl::codex`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from pytest_core_rollouts.cli import CommandError
from pytest_core_rollouts.records.errors import RecordsError
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import read_records
from pytest_core_rollouts.results.baseline import Baseline, load_baseline, newest_versions
from pytest_core_rollouts.results.summary import AgentScore, Summary, slim, summarize


def read(paths: Iterable[Path], run_id: str | None = None) -> list[RolloutRecord]:
    """The rows of all files, or of one run in them, without what a table does not need. Raises CommandError."""
    rows: list[RolloutRecord] = []
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise CommandError(f"{path} is named twice; its rows would count twice")
        seen.add(path.resolve())
        try:
            rows += map(slim, read_records(path, items=False))
        except RecordsError as error:
            raise CommandError(str(error)) from None
    known = sorted({row.run_id for row in rows})
    if run_id is not None:
        rows = [row for row in rows if row.run_id == run_id]
        if not rows:
            raise CommandError(f"no rows of run {run_id}; there are those of {', '.join(known) or 'none'}")
    if not rows:
        raise CommandError(f"{', '.join(map(str, paths))}: no rows")
    return rows


def baseline(path: Path) -> Baseline:
    """Raises CommandError."""
    try:
        return load_baseline(path)
    except RecordsError as error:
        raise CommandError(f"--baseline: {error}") from None


def scores(named: str) -> tuple[str, Summary]:
    """`FILE` or `FILE::AGENT`: what it is called, and what it amounts to, with one agent if one was named.

    Of a task that was changed between runs of the file only the newest version counts.
    """
    file, _, label = named.partition("::")
    summary = summarize(newest_versions(read([Path(file)])))
    if not label:
        return Path(file).name, summary
    return f"{Path(file).name}::{label}", Summary((pick(summary, label, file),), 0)


def pick(summary: Summary, label: str, file: str) -> AgentScore:
    """The agent of that label."""
    for agent in summary.agents:
        if label in (agent.label, agent.name):
            return agent
    raise CommandError(f"{file} has no agent {label!r}; it has {', '.join(agent.label for agent in summary.agents)}")


def write(text: str) -> None:
    """To stdout, in UTF-8 whatever the locale is: the same rows give the same bytes everywhere."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8"))
    sys.stdout.buffer.flush()
