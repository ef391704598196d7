"""A summary as Markdown: for a file, for a terminal of some width, and for the page of a GitHub Actions job.

The same summary always gives the same bytes: they do not depend on the time, the locale or the machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_core_rollouts.report.agents_table import agents_table
from pytest_core_rollouts.report.cells import MIN_NAME, Column, clip, escape, prose, table, table_width, wrapped
from pytest_core_rollouts.report.costs import cost_lines
from pytest_core_rollouts.results.number_text import UNKNOWN, between, decimal
from pytest_core_rollouts.results.scores import METRICS_SHOWN, AgentScore, Estimate, Metric, TaskScore, TasksSolved
from pytest_core_rollouts.results.summary import Summary
from pytest_core_rollouts.text import listed

MAX_TASKS = 50
"""Maximum number of tasks in the table; of more tasks only those not always solved are shown."""
FEW_TASKS = 10
"""Maximum number of tasks in a terminal without -v, which only shows those not always solved."""
MAX_WHYS = 50
"""Maximum number of reasons why rewards are below 1."""
FEW_WHYS = 5
"""The same, in a terminal without -v."""
FEW_KINDS = 3
"""Maximum number of kinds of errors in a terminal without -v."""
GROUPS = (
    "A group is the samples of one task by one agent. Methods that learn from groups (such as GRPO) compare",
    "a reward with its group's mean: where all rewards are the same, nothing is learned.",
)


def markdown(summary: Summary, *, verdicts: Sequence[str] = (), appendix: Sequence[str] = ()) -> str:
    """Return the whole report: what ran, verdicts, a row per agent, what missing rewards could change, errors, pass@k
    and pass^k, tasks, expected failures, why rewards are below 1, groups, and the texts in `appendix` (comparisons).
    """
    gates = "".join(f"- {prose(verdict)}\n" for verdict in verdicts)
    parts = [*filter(None, (_header(summary), gates)), *_parts(summary, None, whole=True)]
    return "\n".join([*parts, *appendix])


def terminal(
    summary: Summary, width: int = 80, *, whole: bool = False, groups: bool = False, whys: bool = False
) -> str:
    """Return the report for a terminal: with short heads, and without the least important columns if `width` is small.

    If not `whole`, it only has what needs attention: tasks that were not always solved, estimates if some were and some
    were not, expected failures, groups if `groups` is set, and a few reasons why rewards are below 1 if `whys` is set.
    More than two agents are ranked by their mean reward.
    """
    if len(summary.agents) > 2:
        summary = replace(summary, agents=tuple(sorted(summary.agents, key=_rank)))
    return "\n".join([_header(summary), *_parts(summary, width, whole, groups=groups or whole, whys=whys or whole)])


def _rank(agent: AgentScore) -> tuple[bool, float]:
    mean = agent.mean_reward.value
    return mean is None, 0.0 if mean is None else -float(mean)


def _parts(
    summary: Summary, width: int | None, whole: bool, *, groups: bool = True, whys: bool = True
) -> Iterator[str]:
    if not summary.agents:
        return
    yield agents_table(summary, width)
    if notes := "".join(_missing_note(agent, width) for agent in summary.agents):
        yield notes
    if costs := _list(list(cost_lines(summary)), width):
        yield costs
    if faults := _faults_by_kind(summary, width, None if whole else FEW_KINDS):
        yield faults
    if warnings := _list([f"- warning: {prose(warning)}" for warning in summary.warnings], width):
        yield warnings
    if metrics := _metrics(summary, width):
        yield metrics
    if summary.samples[1] > 1 and (whole or 0 < summary.solved < summary.graded):
        yield _estimates(summary, width)
        if few := _few_samples(summary, width, None if whole else FEW_TASKS):
            yield few
    if tasks := _tasks(summary, width, whole=whole):
        yield tasks
    if xfails := _xfails(summary, width):
        yield xfails
    if whys and (reasons := _whys(summary, width, MAX_WHYS if whole else FEW_WHYS)):
        yield reasons
    if gained := _gained(summary, width):
        yield gained
    if changed := _changed(summary, width):
        yield changed
    if groups and summary.samples[1] > 1:
        yield _groups(summary, width)


def _header(summary: Summary) -> str:
    xfails = sum(score.rows for agent in summary.agents for score in agent.xfails)
    more = f", and {xfails} expected to fail" if xfails else ""
    if summary.rows < summary.planned:
        return f"rows {summary.rows} of {summary.planned} planned{more}\n"
    fewest, most = summary.samples
    samples = _counted(most, "sample") if fewest == most else f"{fewest} to {most} samples"
    each = f": {_counted(len(summary.tasks), 'task')}, {samples} each" if summary.tasks else ""
    merged = f", {summary.runs} runs merged" if summary.runs > 1 else ""
    return f"{_counted(summary.rows, 'rollout')}{each}{more}{merged}{_rounds(summary)}\n"


def _rounds(summary: Summary) -> str:
    """Return which rounds of a run that stopped early are counted; empty if all are."""
    found = {label: str(rounds) for label, rounds in summary.rounds.items()}
    if len(set(found.values())) > 1:
        return f", {', '.join(f'{escape(label)} {text}' for label, text in found.items())}"
    return f", {next(iter(found.values()))}" if found else ""


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _missing_note(agent: AgentScore, width: int | None) -> str:
    """Return how rollouts without a reward could change the figures; empty if none is missing."""
    if not agent.missing:
        return ""
    # "agent" comes first, because Markdown could take a name at the start for a heading or a list
    reward, solved = agent.mean_reward, agent.tasks_solved
    counts = [("errors", agent.errors), ("not run", agent.not_run)]
    start = (
        f"- agent {escape(agent.label)}: valid {agent.graded}/{agent.planned}, "
        f"{', '.join(f'{what} {count}' for what, count in counts if count)}. Had these all failed / all passed:"
    )
    figures = (
        f"mean reward {decimal(reward.low)} / {decimal(reward.high)}, "
        f"tasks solved {solved.solved} / {solved.most} of {solved.tasks}."
    )
    return f"{start}\n  {figures}\n" if width is None else _list([f"{start} {figures}"], width)


def _faults_by_kind(summary: Summary, width: int | None, most: int | None) -> str:
    """Return a line for each kind of error, the most frequent first."""
    kinds: Counter[str] = Counter()
    for agent in summary.agents:
        kinds.update(dict(agent.faults))
    ordered = sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    lines = [f"- {count} x {prose(kind)}" for kind, count in ordered[:most]]
    if len(ordered) > len(lines):
        lines.append(f"- and {_counted(len(ordered) - len(lines), 'more kind')} of errors")
    return _list(lines, width)


# Metrics


def _metrics(summary: Summary, width: int | None) -> str:
    """Return the mean of each metric of the graders, and of how many rollouts if some graded ones do not have it."""
    names = sorted({metric.name for agent in summary.agents for metric in agent.metrics})
    if not names:
        return ""
    shown = names[:METRICS_SHOWN]
    cells = []
    for agent in summary.agents:
        of_agent = {metric.name: metric for metric in agent.metrics}
        cells.append([_metric(of_agent.get(name), agent) for name in shown])
    more = f"\n{len(names) - len(shown):,} more metrics.\n" if len(names) > len(shown) else ""
    return _by_agent(summary, "mean of metric", list(map(escape, shown)), cells, width) + more


def _metric(metric: Metric | None, agent: AgentScore) -> str:
    if metric is None:
        return UNKNOWN
    return str(metric) if metric.rows == agent.graded else f"{metric} [{metric.rows}/{agent.graded}]"


# pass@k and pass^k


def _estimates(summary: Summary, width: int | None) -> str:
    """Return the table in the first form that fits, which is the last one if none does.

    A row per estimate, which Markdown always has; a row per agent; a row per agent, without intervals.
    """
    estimates = [
        {name: found for name, found in agent.figures(summary.ks).items() if name.startswith("pass")}
        for agent in summary.agents
    ]
    names, labels = list(estimates[0]), [escape(agent.label) for agent in summary.agents]
    cells = [list(map(_estimate, of_agent.values())) for of_agent in estimates]
    per_estimate = [
        Column("estimate (95% interval)", names, numeric=False),
        *(Column(label, of_agent) for label, of_agent in zip(labels, cells, strict=True)),
    ]
    if width is None:
        return table(per_estimate)
    short = [[str(figure) for figure in of_agent.values()] for of_agent in estimates]
    per_agent = _transposed("estimate (95% interval)", labels, names, cells)
    shortest = _transposed("estimate", labels, names, short)
    while table_width(shortest) > width and len(shortest) > 3:
        del shortest[2]  # pass@1 and the last ones stay
    forms = (per_estimate, per_agent, shortest)
    return table(next((form for form in forms if table_width(form) <= width), shortest))


def _transposed(head: str, labels: Sequence[str], names: Sequence[str], cells: Sequence[Sequence[str]]) -> list[Column]:
    columns = [Column(name, [of_agent[index] for of_agent in cells]) for index, name in enumerate(names)]
    return [Column(head, labels, numeric=False), *columns]


def _estimate(estimate: Estimate | TasksSolved) -> str:
    if not isinstance(estimate, Estimate) or estimate.value is None:
        return str(estimate)
    spread = "" if estimate.interval is None else f" ({between(estimate.interval)})"
    part = f" [{estimate.tasks}/{estimate.tasks + estimate.tasks_left_out} tasks]" if estimate.tasks_left_out else ""
    return f"{estimate}{spread}{part}"


def _few_samples(summary: Summary, width: int | None, most: int | None) -> str:
    """Return the tasks that some estimates leave out, each with the number of its samples with a reward."""
    needed = summary.samples[1]
    lines = []
    for agent in summary.agents:
        few = [f"{escape(task.task)} {task.graded}" for task in agent.tasks if task.graded < needed]
        if few:
            lines.append(f"- fewer than {needed} samples{_whose(agent, summary)} with a reward: {listed(few, most)}")
    return _list(lines, width)


# One row per task


def _tasks(summary: Summary, width: int | None, *, whole: bool) -> str:
    if not summary.tasks:
        return ""
    scores = {agent.label: {task.task: task for task in agent.tasks} for agent in summary.agents}
    shown, rest = _chosen(summary.tasks, scores, whole=whole)
    cells = [[_count(of_task.get(task)) for task in shown] for of_task in scores.values()]
    below = f"{rest}\n" if rest else ""
    if not shown:
        return below
    return _by_agent(summary, "task (solved/graded)", list(map(escape, shown)), cells, width) + (
        f"\n{below}" if below else ""
    )


def _by_agent(
    summary: Summary, head: str, names: Sequence[str], cells: Sequence[Sequence[str]], width: int | None
) -> str:
    """Return a table with a column per agent, whose `cells` they are. One that is too wide numbers the agents."""
    labels = [escape(agent.label) for agent in summary.agents]
    columns = [Column(label, of_agent) for label, of_agent in zip(labels, cells, strict=True)]
    whole = [Column(head, names, numeric=False), *columns]
    if width is None or table_width(whole) <= width:
        return table(whole)
    legend = _list([f"{head}; agents are numbered as the first table lists them"], width)
    short = [[cell.partition(" ")[0] + "+" * (" " in cell) for cell in of_agent] for of_agent in cells]
    if any(cell.endswith("+") for of_agent in short for cell in of_agent):
        legend = _list([f"{legend.strip()}; + not all rollouts have a result"], width)
    columns = [Column(str(number), of_agent) for number, of_agent in enumerate(short, 1)]
    room = width - table_width(columns) - 3
    if room >= MIN_NAME:
        return f"{legend}\n{table([Column('', [clip(name, room) for name in names], numeric=False), *columns])}"
    lines = [
        f"- {name}: {', '.join(f'{number}: {cell}' for number, cell in enumerate(row, 1))}"
        for name, row in zip(names, zip(*short, strict=True), strict=True)
    ]
    return f"{legend}\n{_list(lines, width)}"


def _chosen(tasks: Sequence[str], scores: dict[str, dict[str, TaskScore]], *, whole: bool) -> tuple[Sequence[str], str]:
    """Return the tasks to show and a sentence about the rest."""
    if whole and len(tasks) <= MAX_TASKS:
        return tasks, ""
    most = MAX_TASKS if whole else FEW_TASKS
    open_tasks = [
        task
        for task in tasks
        if any(score.solved < score.planned for of_task in scores.values() if (score := of_task.get(task)))
    ]
    solved, more = len(tasks) - len(open_tasks), max(0, len(open_tasks) - most)
    if not (open_tasks or whole):
        return (), ""  # the first table shows it
    sentence = f"{_counted(solved, 'more task')} solved by every rollout" if solved or more else ""
    sentence += f", {more} more not{'' if whole else ' (-v shows them)'}" if more else ""
    return open_tasks[:most], f"{sentence}." if sentence else ""


def _count(score: TaskScore | None) -> str:
    if score is None:
        return UNKNOWN
    of_planned = f" of {score.planned}" if score.missing else ""
    return f"{score.solved}/{score.graded}{of_planned}"


def _xfails(summary: Summary, width: int | None) -> str:
    """Return what was expected to fail, with solved/graded samples: no figure counts it."""
    lines = []
    for agent in summary.agents:
        if found := [f"{escape(task.task)} {_count(task)}" for task in agent.xfails]:
            lines.append(f"- expected to fail{_whose(agent, summary)}, in no figure: {listed(found)}")
    return _list(lines, width)


def _whys(summary: Summary, width: int | None, most: int) -> str:
    """Return why rewards are below 1, the most frequent first."""
    found = [(-count, task, agent.label, why) for agent in summary.agents for task, why, count in agent.whys]
    by = {agent.label: f" by {escape(agent.label)}" if len(summary.agents) > 1 else "" for agent in summary.agents}
    lines = [f"- {-count} x {escape(task)}{by[label]}: {prose(why)}" for count, task, label, why in sorted(found)]
    if more := len(lines) - most:
        lines[most:] = [f"- and {_counted(more, 'more reason')}"] if more > 0 else []
    return f"Why rewards are below 1:\n\n{_list(lines, width)}" if lines else ""


def _gained(summary: Summary, width: int | None) -> str:
    """Return tasks that were expected to fail and now pass."""
    lines = [
        f"- gained: {escape(task.task)} by {escape(agent.label)}: {task.solved} of {task.planned} samples pass; "
        "its xfail can go"
        for agent in summary.agents
        for task in agent.gained
    ]
    return _list(lines, width)


def _changed(summary: Summary, width: int | None) -> str:
    """Return tasks that were changed between the merged runs, so that their samples differ in more than chance."""
    lines = []
    for agent in summary.agents:
        if changed := [escape(task.task) for task in (*agent.tasks, *agent.xfails) if len(task.digests) > 1]:
            lines.append(f"- task changed between runs{_whose(agent, summary)}, counted as one: {listed(changed)}")
    return _list(lines, width)


def _list(lines: Sequence[str], width: int | None) -> str:
    return "".join(f"{wrapped(line, width)}\n" for line in lines)


def _whose(agent: AgentScore, summary: Summary) -> str:
    return f" of {escape(agent.label)}" if len(summary.agents) > 1 else ""


# Groups


def _groups(summary: Summary, width: int | None) -> str:
    """Return how many groups could teach something, per agent if there are several."""
    lines = _list([_group_line(agent, _whose(agent, summary)) for agent in summary.agents], width)
    if width is None:
        return f"{lines}\n{GROUPS[0]}\n{GROUPS[1]}\n"
    return f"{lines}\n{_list([' '.join(GROUPS)], width)}"


def _group_line(agent: AgentScore, whose: str) -> str:
    health = agent.groups
    kinds = [
        (health.signal, "with a signal (rewards differ)"),
        (health.all_one, "all 1"),
        (health.all_zero, "all 0"),
        (health.alike, "all the same in between"),
        (health.empty, "without a reward"),
    ]
    parts = ", ".join(f"{count} {what}" for count, what in kinds if count)
    return f"- groups{whose}: {health.complete} of {health.total} complete; {parts}"


# The step summary of GitHub Actions: a file that `$GITHUB_STEP_SUMMARY` names


LIMIT = 1024 * 1024
"""Maximum size in bytes; GitHub shows nothing of a larger file."""
CUT = "\n*The rest is left out: GitHub shows 1 MiB of a step.*\n"


def append_summary(path: Path, text: str) -> None:
    """Append `text`, cut at the end of a line if the file would become too large. Raises OSError."""
    taken = path.stat().st_size if path.exists() else 0
    data = text.encode("utf-8", "replace")
    room = LIMIT - taken
    if len(data) > room:
        room -= len(CUT.encode())
        data = data[: data.rfind(b"\n", 0, room) + 1] + CUT.encode() if room > 0 else b""
    with path.open("ab") as file:
        file.write(data)
