"""The data of the HTML report: a small index of every rollout, and the details of each, which are unpacked on demand.

All of it is plain JSON. Rows are read twice, one at a time: first for the index, then for the details. So memory is
bounded by the index, however long the trajectories are.

Answers and their differences are stored as JSON text made here: a browser would round integers beyond 2^53, and two
different answers would look equal.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_core_rollouts.records.jsonable import jsonable
from pytest_core_rollouts.records.record import COLUMNS, RolloutRecord
from pytest_core_rollouts.records.rows import effective_rows, read_records, slim
from pytest_core_rollouts.records.why import shown_why
from pytest_core_rollouts.report.costs import cost_clause
from pytest_core_rollouts.report.html_baseline import agent_key_of, compare_runs
from pytest_core_rollouts.report.html_causes import Brief, causes
from pytest_core_rollouts.results.comparison import Baseline
from pytest_core_rollouts.results.early_stop import Rounds
from pytest_core_rollouts.results.gate import WORDS, Judgment
from pytest_core_rollouts.results.gate_kinds import Verdict
from pytest_core_rollouts.results.number_text import between
from pytest_core_rollouts.results.prices import Cost, Prices
from pytest_core_rollouts.results.scores import METRICS_SHOWN, AgentScore, Estimate
from pytest_core_rollouts.results.summary import Summary, agent_key, summarize, summarize_rounds
from pytest_core_rollouts.text import one_line

BRIEF = 240
"""Characters of an error or a reason in the index, which lists show and searches use."""
VALUE_LIMIT = 20_000
"""Characters of one expected or answered value."""
ITEM_LIMIT = 4 << 20
"""Characters of JSON of one Item; the strings of a longer one are cut."""
ROLLOUT_LIMIT = 48 << 20
"""Characters of JSON of one rollout's Items; the middle of a longer one is left out."""
CURVE_POINTS = 32

OUTCOMES = ("solved", "partial", "unsolved", "timeout", "failed", "error", "cancelled", "not run")
"""Outcomes of a rollout, for colors and filters. `failed` was caused by the agent and has reward 0."""


def outcome(record: RolloutRecord) -> str:
    """Return one of OUTCOMES."""
    if record.interrupted:
        return "not run"
    if record.reward is None:
        return "cancelled" if record.status == "cancelled" else "error"
    if record.status != "completed":
        return record.status
    return "solved" if record.solved else "partial" if record.reward else "unsolved"


# The index


@dataclass(frozen=True)
class Scan:
    """All effective rows without their large fields, and their positions."""

    rows: Sequence[RolloutRecord]
    """Without Items, answers, reasons, notes and the end of a long error."""
    briefs: Sequence[Brief]
    positions: frozenset[int]
    """The positions of these rows among all rows that were read, counted from 0."""
    run_id: str | None

    def summary(self, prices: Prices | None = None) -> Summary:
        return summarize_rounds(self.rows, prices=prices)


def scan(paths: Iterable[Path], run_id: str | None = None, *, hide_expected: bool = False) -> Scan:
    """Read every row once, or only those of one run. Raises RecordsError for a file that can't be read."""
    rows: list[RolloutRecord] = []
    briefs: list[Brief] = []
    for record in _rows(paths, run_id):
        briefs.append(Brief.of(record, hide_expected=hide_expected))
        rows.append(slim(record, outputs=(), notes=(), error=record.error and record.error[:BRIEF]))
    positions = sorted(row.position for row in effective_rows(rows).values())
    return Scan([rows[at] for at in positions], [briefs[at] for at in positions], frozenset(positions), run_id)


def _rows(paths: Iterable[Path], run_id: str | None) -> Iterator[RolloutRecord]:
    rows = itertools.chain.from_iterable(map(read_records, paths))
    return rows if run_id is None else (row for row in rows if row.run_id == run_id)


def _path(reason: Any) -> str:
    return str(reason.get("path", "")) if isinstance(reason, dict) else str(reason)


def index(
    found: Scan,
    files: Sequence[str],
    baseline: Baseline | None = None,
    judgments: Iterable[Judgment] = (),
    prices: Prices | None = None,
) -> dict[str, Any]:
    """Return the data of the overview and of the lists. Row r is the r-th effective row."""
    summary = found.summary(prices)
    what_went_wrong, places = causes(found.rows, found.briefs)
    keys = {key: at for at, key in enumerate(sorted({agent_key(row) for row in found.rows}))}
    tasks = {task: at for at, task in enumerate(sorted({row.task for row in found.rows}))}
    runs = {run_id: at for at, run_id in enumerate(sorted({row.run_id for row in found.rows}))}
    whole = summarize(found.rows, prices=prices) if summary.rounds else summary
    # An agent without a complete round is not in the summary of a run that stopped early.
    scores = {agent_key_of(agent): agent for agent in (*whole.agents, *summary.agents)}
    labels = {agent_key_of(agent): agent.label for agent in whole.agents}
    judgments = list(judgments)
    return {
        "files": list(files),
        "planned": summary.planned,
        "plannedXfails": sum(score.planned for agent in summary.agents for score in agent.xfails),
        "agents": [_agent(scores[key], tasks, summary.rounds.get(labels[key])) for key in keys],
        "early": _early(whole, summary, judgments),
        "tasks": list(tasks),
        "runs": [_run(run_id, found.rows) for run_id in runs],
        "settings": _settings(found.rows),
        "outcomes": OUTCOMES,
        "tags": _tags(found.rows, tasks),
        "gates": [_verdict(judgment, name, row) for judgment in judgments for name, row in _by_agent(judgment)],
        "cost": _cost(whole),
        "causes": what_went_wrong,
        "warnings": summary.warnings,
        "rollouts": {**_columns(found, tasks, keys, runs), "cause": places},
        "baseline": None if baseline is None else compare_runs(summary, baseline, tasks, keys),
    }


def _columns(
    found: Scan, tasks: Mapping[str, int], agents: Mapping[tuple[str, str, str, str], int], runs: Mapping[str, int]
) -> dict[str, list[Any]]:
    """Return one list per field with an entry per rollout: half the size of a list of objects."""
    rows = found.rows
    return {
        "id": [row.rollout_id for row in rows],
        "task": [tasks[row.task] for row in rows],
        "agent": [agents[agent_key(row)] for row in rows],
        "run": [runs[row.run_id] for row in rows],
        "sample": [row.sample for row in rows],
        "outcome": [OUTCOMES.index(outcome(row)) for row in rows],
        "reward": [row.reward for row in rows],
        "duration": [row.duration_s for row in rows],
        "tokens": [row.tokens for row in rows],
        "items": [brief.items for brief in found.briefs],
        "brief": [brief.why for brief in found.briefs],
        "answer": [brief.answer for brief in found.briefs],
        "found": [brief.found for brief in found.briefs],
        "xfail": [at for at, row in enumerate(rows) if row.xfail],  # their positions, because they are few
    }


def _tags(rows: Iterable[RolloutRecord], tasks: Mapping[str, int]) -> list[list[str]]:
    """Return the tags of each task, of all its rows."""
    tags: list[set[str]] = [set() for _ in tasks]
    for row in rows:
        tags[tasks[row.task]].update(map(str, row.tags))
    return [sorted(of) for of in tags]


def _early(whole: Summary, summary: Summary, judgments: Sequence[Judgment]) -> dict[str, Any] | None:
    """Return what a run that stopped early saved; None for another run.

    Without a decision of every gate it is not known whether the rest is still needed.
    """
    if whole.stop is None or not summary.rounds:
        return None
    decided = bool(judgments) and all(judgment.passed is not None for judgment in judgments)
    rest = whole.planned - whole.rows
    known = [agent.tokens for agent in whole.agents if agent.tokens is not None]
    mean = sum(known) / whole.rows if len(known) == len(whole.agents) and whole.rows else 0
    return {"rule": whole.stop.text, "planned": whole.planned, "rest": rest, "decided": decided, "tokens": mean * rest}


def _cost(summary: Summary) -> str | None:
    """Return what the run cost; None without prices."""
    costs = [agent.cost for agent in summary.agents if agent.cost is not None]
    return cost_clause(sum(costs, Cost()), 0, one_line) if costs else None


def _by_agent(judgment: Judgment) -> Iterable[tuple[str | None, Verdict]]:
    """Yield each agent's label and verdict; None and the verdict on the run if there is only one."""
    if len(judgment.by_agent) < 2:
        return [(None, Verdict(judgment.passed, judgment.text))]
    return judgment.by_agent.items()


def _verdict(judgment: Judgment, agent: str | None, verdict: Verdict) -> dict[str, Any]:
    return {"gate": judgment.gate, "agent": agent, "verdict": WORDS[verdict.passed], "text": verdict.text}


def _agent(agent: AgentScore, tasks: Mapping[str, int], rounds: Rounds | None) -> dict[str, Any]:
    most = max((task.graded for task in agent.tasks), default=0)
    solved = agent.tasks_solved
    ks = _points(most)
    return {
        "label": agent.label,
        "harness": agent.harness,
        "model": agent.model,
        "name": agent.name,
        "digest": agent.digest,
        "planned": agent.planned,
        "rounds": None if rounds is None else [rounds.complete, rounds.planned],
        "rows": agent.rows,
        "graded": agent.graded,
        "withoutRow": agent.not_run - agent.interrupted,
        "meanReward": figure(agent.mean_reward),
        "tasksSolved": {"text": str(solved), "most": solved.most, "missing": agent.missing},
        "passAt": [{"k": k, **figure(agent.pass_at(k))} for k in ks],
        "passHat": [{"k": k, **figure(agent.pass_hat(k))} for k in ks],
        "metrics": [[metric.name, str(metric), metric.rows] for metric in agent.metrics[:METRICS_SHOWN]],
        "duration": agent.mean_duration,
        "tokens": agent.tokens,
        "tokensUnknown": agent.tokens_unknown,
        "cost": None if agent.cost is None else str(agent.cost),
        "groups": dataclasses.asdict(agent.groups),
        "xfails": [[tasks[task.task], task.solved, task.graded, task.planned] for task in agent.xfails],
        "gained": [[tasks[task.task], task.solved, task.planned] for task in agent.gained],
        "missing": _without_row(agent, tasks),
    }


def _without_row(agent: AgentScore, tasks: Mapping[str, int]) -> dict[int, int]:
    """Return how many planned rollouts of each task have no row, by the task's position."""
    counts: dict[int, int] = {}
    for task in (*agent.tasks, *agent.xfails):
        if left := task.planned - task.rows - task.interrupted:
            counts[tasks[task.task]] = counts.get(tasks[task.task], 0) + left
    return counts


def figure(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as numbers to draw and as the text that every report prints."""
    return {
        "value": None if estimate.value is None else float(estimate.value),
        "text": str(estimate),
        "interval": estimate.interval,
        "range": between(estimate.interval),
        "bounds": between((estimate.low, estimate.high)) if estimate.low != estimate.high else None,
        "tasks": estimate.tasks,
        "leftOut": estimate.tasks_left_out,
    }


def _points(most: int) -> list[int]:
    """Return the ks of a curve: all, or if there are many, increasingly sparse ones."""
    if most <= CURVE_POINTS:
        return list(range(1, most + 1))
    steps = {max(1, round(most ** (step / (CURVE_POINTS - 1)))) for step in range(CURVE_POINTS)}
    return sorted(steps)


def _run(run_id: str, rows: Iterable[RolloutRecord]) -> dict[str, Any]:
    own = [row for row in rows if row.run_id == run_id]
    starts = sorted(row.started_at for row in own if row.started_at)
    return {
        "id": run_id,
        "rows": len(own),
        "planned": max(row.planned.get("run", 0) for row in own),
        "first": starts[0] if starts else None,
        "last": starts[-1] if starts else None,
        "labels": {key: text for row in own for key, text in row.labels.items()},
    }


def _settings(rows: Iterable[RolloutRecord]) -> list[dict[str, Any]]:
    """Return the different settings, and the number of rollouts with each."""
    counts: dict[str, int] = {}
    for row in rows:
        text = json.dumps(jsonable(row.settings), sort_keys=True)
        counts[text] = counts.get(text, 0) + 1
    return [{"rows": count, "settings": json.loads(text)} for text, count in sorted(counts.items())]


# The details


def details(
    paths: Iterable[Path], found: Scan, *, items_limit: int | None = None, hide_expected: bool = False
) -> Iterator[str]:
    """Yield for each effective row, in order, everything that is not in the index, as ASCII JSON text."""
    for position, record in enumerate(_rows(paths, found.run_id)):
        if position in found.positions:
            yield _detail(record, items_limit, hide_expected)


def _detail(record: RolloutRecord, items_limit: int | None, hide_expected: bool) -> str:
    items, gap = _items(record.items or (), items_limit)
    head: dict[str, Any] = {
        "session": record.session_id,
        "status": record.status,
        "error": record.error,
        "why": shown_why(record, hide_expected=hide_expected),
        "usage": record.usage,
        "timings": record.timings,
        "settings": record.settings,
        "labels": record.labels,
        "attempt": record.attempt,
        "started": record.started_at,
        "digests": {"input": record.input_digest, "grading": record.grading_digest},
        "requests": record.request_ids,
        "notes": record.notes,
        "outputs": record.outputs,
        "reasons": [_reason(reason, hide_expected) for reason in record.reasons],
        "metrics": record.metrics,
        "earlierUsage": record.earlier_usage,
        **{name: getattr(record, name) for name in ("verifier", "turns") if name in COLUMNS},
        "answer": None if record.answer is None else _text(record.answer, limit=None),
        "answerText": record.answer_text,
        "kept": record.items is not None,
        "gap": gap,
    }
    return f'{_dump(head)[:-1]},"items":[{",".join(items)}]}}'


def _reason(reason: Any, hide_expected: bool) -> dict[str, Any]:
    """Return a reason; `expected` is left out if it is hidden, here or by the run that wrote the row."""
    known = reason if isinstance(reason, dict) else {}
    shown = {key: _text(known[key]) for key in ("answered", "expected") if key in known}
    if hide_expected:
        shown.pop("expected", None)
    return {"path": _path(reason), **shown}


def _text(value: Any, limit: int | None = VALUE_LIMIT) -> str:
    """Return a value as JSON text; a list or an object takes several lines."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return text if limit is None or len(text) <= limit else f"{text[:limit]} [{len(text) - limit:,} characters more]"


def _items(items: Sequence[Any], limit: int | None) -> tuple[list[str], dict[str, int] | None]:
    """Return the Items as JSON text. Of too many the middle is left out; `gap` says where and how many."""
    keep = len(items) if limit is None else min(limit, len(items))
    head = [_item(item) for item in items[: (keep + 1) // 2]]
    tail = [_item(item) for item in items[len(items) - keep // 2 :]]
    excess = sum(map(len, head)) + sum(map(len, tail)) - ROLLOUT_LIMIT
    while excess > 0:
        excess -= len(tail.pop(0) if len(tail) >= len(head) else head.pop())
    left_out = len(items) - len(head) - len(tail)
    return head + tail, {"after": len(head), "count": left_out} if left_out else None


def _item(item: Any) -> str:
    text = _dump(item)
    return text if len(text) <= ITEM_LIMIT else _dump(_cut(item))


def _cut(value: Any) -> Any:
    """Return `value` with its longest strings cut, so that it fits ITEM_LIMIT unless it has very many parts."""
    if isinstance(value, str) and len(value) > ITEM_LIMIT // 8:
        half = ITEM_LIMIT // 16
        return f"{value[:half]}\n[{len(value) - 2 * half:,} characters left out of the report]\n{value[-half:]}"
    if isinstance(value, dict):
        return {key: _cut(part) for key, part in value.items()}
    return [_cut(part) for part in value] if isinstance(value, list) else value


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
