"""The plan of a session, before it is paid for: printed before the first rollout, and by `pytest --collect-only`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pytest

from pytest_core_rollouts.collecting.collect import RolloutItem
from pytest_core_rollouts.options.settings import Settings
from pytest_core_rollouts.records.record import RecordsError
from pytest_core_rollouts.records.rows import effective_rows, read_records, slim_rows
from pytest_core_rollouts.report.plan import forecast_line, sight_lines, size_line
from pytest_core_rollouts.results.comparison import load_baseline
from pytest_core_rollouts.results.gate_kinds import NoDrop
from pytest_core_rollouts.results.plan import Group, forecast, spent_share
from pytest_core_rollouts.results.scores import AgentScore
from pytest_core_rollouts.results.summary import summarize_rounds
from pytest_core_rollouts.tasks.matrix import Chosen


def plan_lines(settings: Settings, chosen: Iterable[Chosen], places: int) -> Iterator[str]:
    """Yield how many rollouts there are and what they will take, by --rollout-plan-from or the baseline.

    Without such a file there are no lines. Raises pytest.UsageError if it can't be read.
    """
    path = settings.plan_from or settings.baseline
    counts: Counter[Group] = Counter(
        ((agent.harness, agent.model, agent.name), task_id) for task_id, agent, _ in chosen
    )
    if path is None or not counts:
        return
    try:
        rows = [row.record for row in effective_rows(slim_rows(read_records(path, items=False))).values()]
    except RecordsError as error:
        name = "--rollout-plan-from" if settings.plan_from is not None else "--rollout-baseline"
        raise pytest.UsageError(f"{name}: {error}") from None
    agents, tasks = {agent for agent, _ in counts}, {task for _, task in counts}
    if len(agents) == 1 and len(others := {(row.harness, row.model, row.agent.get("name")) for row in rows}) == 1:
        counts = Counter({(next(iter(others)), task): count for (_, task), count in counts.items()})  # as for gates
    yield size_line(counts.total(), len(tasks), len(agents))
    yield forecast_line(path.name, forecast(rows, counts, places, settings.prices), places)
    if settings.stop is not None and settings.stop.risk and (before := summarize_rounds(rows).agents):
        samples = min(counts.values())
        shares = [spent_share(gate, agent, samples, settings.stop) for gate in settings.gates for agent in before]
        if shares and None not in shares:
            share = max(filter(None, shares))
            yield f"with --rollout-stop {settings.stop.text}: about {share:.0%} of that, if the agents are as they were"


def agent_sight(before: AgentScore, planned: dict[str, int]) -> Iterator[str]:
    """Yield which drops of the mean a gate `baseline` sees on the planned tasks that the baseline has."""
    tasks = [one for one in before.tasks if one.graded and one.task in planned]
    if tasks:
        yield from sight_lines([(one.graded, one.solved) for one in tasks], min(planned[one.task] for one in tasks))


class CollectOnly:
    """Prints the plan in `pytest --collect-only`, which makes no run."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        settings = self._settings
        chosen = [(item.task.id, item.agent, item.sample) for item in items if isinstance(item, RolloutItem)]
        lines = list(plan_lines(settings, chosen, settings.concurrency or 4))
        if settings.baseline is None or not chosen:
            return lines
        try:
            baseline = load_baseline(settings.baseline)
        except RecordsError as error:
            raise pytest.UsageError(f"--rollout-baseline: {error}") from None
        planned: dict[tuple[str, str, str | None], Counter[str]] = {}
        for task_id, agent, _ in chosen:
            planned.setdefault((agent.harness, agent.model, agent.name), Counter())[task_id] += 1
        for gate in settings.gates:
            for before in baseline.summary.agents if isinstance(gate, NoDrop) and gate.scope is None else ():
                own = planned.get(before.identity) or (next(iter(planned.values())) if len(planned) == 1 else Counter())
                whose = f" ({before.label})" if len(planned) > 1 else ""
                lines += [f"gate {gate.expression}{whose} {text}" for text in agent_sight(before, own)]
        return lines
