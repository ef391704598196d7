"""Random sets of rows: every report shows the same figures, an independent computation too, and shards add up."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_core_rollouts.cli import main
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import append
from pytest_core_rollouts.report.changes import changes
from pytest_core_rollouts.report.html_data import index, scan
from pytest_core_rollouts.report.markdown import markdown, terminal
from pytest_core_rollouts.results.comparison import comparisons
from pytest_core_rollouts.results.summary import Summary, summarize
from pytest_core_rollouts.running.pytest_files import add_to_junit
from tests.report.test_markdown import tables
from tests.support.rows import run

RESULTS = (0.0, 0.0, 1.0, 1.0, 1.0, 0.25, 0.5, None, "timeout", "interrupted", "not run")
AGENTS: tuple[dict[str, Any], ...] = (
    {"harness": "codex"},
    {"harness": "codex", "model": "m"},
    {"harness": "claude_sdk", "agent": {"name": "mine", "digest": "abc"}},
)


def random_rows(source: random.Random) -> list[RolloutRecord]:
    """Rows of one or two runs of some agents: errors, partial credit, xfails, missing rows, and second attempts."""
    rows: list[RolloutRecord] = []
    agents = source.sample(AGENTS, source.randint(1, len(AGENTS)))
    tasks = "abcdef"[: source.randint(1, 6)]
    hard = {task for task in tasks if source.random() < 0.2}
    results = RESULTS[: source.choice([3, 5, 7, 9, 11])]
    for run_id in ("r1", "r2")[: source.choice([1, 1, 2])]:
        samples = source.randint(1, 4)
        for agent in agents:
            given = {task: [source.choice(results) for _ in range(samples)] for task in tasks}
            for row in run(given, run_id=run_id, agents=len(agents), **agent):
                settings = {"xfail": "too hard"} if row.task in hard or source.random() < 0.02 else {}
                rows.append(replace(row, settings=settings, duration_s=source.choice([None, 1.5, 2.0])))
    again = [row for row in rows if row.graded and source.random() < 0.1]
    failed = [replace(row, status="error", reward=None, error="the Core is down") for row in again]
    source.shuffle(rows)
    before = source.randint(0, len(failed))
    return [*failed[:before], *rows, *failed[before:]]


# ---- an independent computation, from docs/statistics.md only


def expected_figures(rows: Sequence[RolloutRecord], ks: Sequence[int]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The figures of each agent (by harness, model and name), as fractions."""
    last = {row.rollout_id: row for row in sorted(rows, key=lambda row: row.graded)}
    counted: dict[tuple[str, str, str], dict[str, list[RolloutRecord]]] = {}
    for row in last.values():
        agent = row.harness, row.model, str(row.agent.get("name") or "")
        by_task = counted.setdefault(agent, {})
        if "xfail" not in row.settings:
            by_task.setdefault(row.task, []).append(row)
    return {agent: _of_agent(by_task, ks) for agent, by_task in counted.items()}


def _of_agent(by_task: dict[str, list[RolloutRecord]], ks: Sequence[int]) -> dict[str, Any]:
    rewards = {
        task: [(Fraction(repr(row.reward)), row.reward == 1) for row in rows if row.reward is not None]
        for task, rows in by_task.items()
    }
    graded = [found for found in rewards.values() if found]
    figures: dict[str, Any] = {
        "solved": sum(any(solved for _, solved in found) for found in graded),
        "mean reward": _mean([_mean([reward for reward, _ in found]) for found in graded]),
    }
    for k in ks:
        enough = [[solved for _, solved in found] for found in graded if len(found) >= k]
        choices = [list(combinations(found, k)) for found in enough]
        figures[f"pass@{k}"] = _mean([Fraction(sum(map(any, one)), len(one)) for one in choices])
        if k > 1:
            figures[f"pass^{k}"] = _mean([Fraction(sum(map(all, one)), len(one)) for one in choices])
    return figures


def _mean(values: Sequence[Fraction | None]) -> Fraction | None:
    known = [value for value in values if value is not None]
    return sum(known, Fraction(0)) / len(known) if known else None


def _text(value: Fraction | None) -> str:
    """Three decimals; only 0 is 0.000 and only 1 is 1.000. Halves are rounded to even."""
    if value is None:
        return "n/a"
    thousandths = round(value * 1000)
    return f"{min(max(thousandths, 1), 999) / 1000:.3f}" if 0 < value < 1 else f"{math.trunc(value)}.000"


# ---- what reports show


def in_tables(text: str, agents: int) -> list[dict[str, str]]:
    """The figures that a report as Markdown shows for each agent."""
    found = tables(text)
    head, _, *lines = found[0]
    shown = [{name: line[head.index(name)] for name in ("tasks solved", "mean reward")} for line in lines]
    assert len(shown) == agents
    for table in found[1:]:
        if table[0][0].startswith("estimate"):
            for name, *cells in table[2:]:
                for of_agent, cell in zip(shown, cells, strict=True):
                    of_agent[name] = cell.split()[0]
    return shown


def in_html(path: Path, ks: Sequence[int]) -> list[dict[str, str]]:
    data = index(scan([path]), [path.name])
    return [
        {
            "tasks solved": agent["tasksSolved"]["text"],
            "mean reward": agent["meanReward"]["text"],
            **{f"pass@{one['k']}": one["text"] for one in agent["passAt"] if one["k"] in ks},
            **{f"pass^{one['k']}": one["text"] for one in agent["passHat"] if one["k"] in ks and one["k"] > 1},
        }
        for agent in data["agents"]
    ]


def in_junit(path: Path, summary: Summary) -> list[dict[str, str]]:
    path.write_text('<testsuites><testsuite tests="0" failures="0"/></testsuites>')
    add_to_junit(path, summary, ())
    shown: dict[str, dict[str, str]] = {agent.label: {} for agent in summary.agents}
    for one in ElementTree.parse(path).iter("property"):
        name, _, label = str(one.get("name")).partition(" [")
        shown[label.removesuffix("]") or summary.agents[0].label][name] = str(one.get("value"))
    return list(shown.values())


def shards(source: random.Random, rows: Sequence[RolloutRecord], folder: Path) -> Iterator[Path]:
    """Write the rows of each rollout to one of some files, and yield the files in any order."""
    count = source.randint(2, 4)
    of_rollout = {row.rollout_id: source.randrange(count) for row in rows}
    files = []
    for number in range(count):
        mine = [row for row in rows if of_rollout[row.rollout_id] == number]
        if mine:
            files.append(write(folder / f"{number}.jsonl", mine))
    source.shuffle(files)
    yield from files


def write(path: Path, rows: Sequence[RolloutRecord]) -> Path:
    path.unlink(missing_ok=True)
    for row in rows:
        append(path, row, sync=False)
    return path


def report(capfdbinary: pytest.CaptureFixture[bytes], *files: Path) -> bytes:
    assert main(["report", *map(str, files)]) == 0
    return capfdbinary.readouterr().out


# 50 sets in each run of the tests, 2,000 in the deep one
@pytest.mark.parametrize("seeds", [range(50), pytest.param(range(50, 2_050), marks=pytest.mark.slow)])
def test_every_report_shows_the_same_figures(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], seeds: range
) -> None:
    for seed in seeds:
        source = random.Random(seed)
        rows = random_rows(source)
        if not rows:
            continue
        summary = summarize(rows)
        whole = write(tmp_path / "whole.jsonl", rows)
        printed = report(capfdbinary, whole)
        compared = [changes(*one) for one in comparisons(summary, None)]
        assert printed.decode() == markdown(summary, appendix=compared), seed
        assert report(capfdbinary, *shards(source, rows, tmp_path)) == printed, seed

        shown = in_tables(markdown(summary), len(summary.agents))
        on_terminal = in_tables(terminal(summary, 400, whole=True), len(summary.agents))  # ranked
        assert sorted(on_terminal, key=str) == sorted(shown, key=str), seed
        junit = in_junit(tmp_path / "junit.xml", summary)
        for of_agent, of_junit, of_html in zip(shown, junit, in_html(whole, summary.ks), strict=True):
            assert of_agent.items() <= of_junit.items(), seed  # a table of single samples has no pass@1
            assert of_html.items() <= of_junit.items(), seed  # the curves end where no task has k samples
        expected = expected_figures(rows, summary.ks)
        for agent, of_junit in zip(summary.agents, junit, strict=True):
            figures = expected[agent.harness, agent.model, agent.name or ""]
            solved = f"{figures.pop('solved')}/{agent.planned_tasks}"
            assert of_junit == {"tasks solved": solved, **{k: _text(v) for k, v in figures.items()}}, seed


def test_shards_with_any_rows_have_the_plan_of_the_whole() -> None:
    """Of a random part of the rows, what is missing is exactly the rest of what was planned."""
    for seed in range(100):
        source = random.Random(seed)
        rows = [row for row in random_rows(source) if not row.xfail and not row.interrupted]
        once = list({row.rollout_id: row for row in rows}.values())
        part = [row for row in once if source.random() < 0.5]
        whole, some = summarize(once), summarize(part)
        runs = {row.run_id for row in part}
        planned = sum(max((row.planned["run"] for row in once if row.run_id == one), default=0) for one in runs)
        assert (some.planned, some.rows) == (planned, len(part)), seed
        assert whole.planned >= some.planned, seed
