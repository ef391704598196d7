"""Hostile agents, each with two honest neighbours: nobody but the agent itself is worse off, and nothing is left.

The agents are data, in `tests/support/hostile`: a new one is one entry there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import KEY, needs_codex
from tests.support.hostile.agents import Hostile
from tests.support.hostile.answers import ANSWERS
from tests.support.hostile.kernel import KERNEL
from tests.support.hostile.memory import MEMORY
from tests.support.hostile.outputs import OUTPUTS
from tests.support.hostile.processes import PROCESSES
from tests.support.hostile.programs import PROGRAMS
from tests.support.hostile.runs import CANARY, SECRET, Finished, is_honest, run, scripted_model, task_id, write_project

TINY = str(Path(__file__).parents[2] / "examples" / "harnesses" / "tiny.yaml")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
COMMAND = re.compile(r"^\s*(::|##)\w*.*owned", re.MULTILINE)


def code_of(row: dict[str, Any]) -> str | None:
    """The code of the Turn's error."""
    match = re.match(r"the Turn failed: (\w+)", row["error"] or "")
    return match[1] if match else None


def texts(row: dict[str, Any]) -> str:
    """What the row says about the Turn: its error and what was printed."""
    return f"{row['error']}\n{json.dumps(row['items'], ensure_ascii=False)}"


def faults_of_row(agent: Hostile, row: dict[str, Any] | None) -> Iterator[str]:
    """What is not as expected in a hostile agent's row."""
    if row is None:
        yield "no row"
        return
    seen = f"{row['status']}, {code_of(row)}, {row['error']}, {row['notes']}, {json.dumps(row['items'])[-600:]}"
    if row["reward"] != agent.reward and not (agent.reward and code_of(row) in agent.codes[1:]):
        yield f"reward {row['reward']}, expected {agent.reward}: {seen}"
    if row["reward"] is None or row["attempt"] != 1:
        yield f"its reward is missing, or it was tried again: {seen}"
    if agent.status and row["status"] != agent.status:
        yield f"status {row['status']}, expected {agent.status}: {seen}"
    if code_of(row) not in agent.codes:
        yield f"code {code_of(row)}, expected one of {agent.codes}: {seen}"
    if agent.says not in texts(row):
        yield f"{agent.says!r} is not in the result: {seen}"
    if agent.never_says and agent.never_says in texts(row):
        yield f"{agent.never_says!r} is in the result: {seen}"
    if any(secret in texts(row) or secret in json.dumps(row["answer"]) for secret in (CANARY, SECRET, KEY)):
        yield "a secret or an expected value is in the row"


def faults(agents: Sequence[Hostile], finished: Finished) -> Iterator[str]:
    """What is not as expected in the whole run."""
    for number, agent in enumerate(agents):
        for fault in faults_of_row(agent, finished.rows.get(task_id(number, "z", agent.name))):
            yield f"{agent.name}: {fault}"
        for row in finished.neighbors(agent.name):
            if row["reward"] != 1.0 or row["attempt"] != 1:
                seen = f"reward {row['reward']} in attempt {row['attempt']}: {row['error']}"
                yield f"{agent.name}: its neighbor has {seen}"
    if len(finished.rows) != 3 * len(agents) + 2:
        yield f"{len(finished.rows)} rows, expected {3 * len(agents) + 2}"
    for task, row in finished.rows.items():
        if is_honest(task) and task.endswith("after") and row["reward"] != 1.0:
            yield f"the Core no longer serves: {row['error']}"
    if finished.code not in (0, 1):
        yield f"the run ended with exit code {finished.code}"
    for what, names in finished.left.items():
        if names:
            yield f"{what} are left: {names[:10]}"
    for pattern in (CONTROL, COMMAND):
        if match := pattern.search(finished.printed):
            around = finished.printed[max(0, match.start() - 80) : match.end() + 80]
            yield f"the terminal is sent {match[0]!r}: {around!r}"
    if SECRET in finished.printed or KEY in finished.printed:
        yield "a secret is printed"


def check(agents: Sequence[Hostile], finished: Finished) -> None:
    found = list(faults(agents, finished))
    assert not found, "\n".join([*found, finished.printed[-3000:]])


@pytest.mark.parametrize(
    "agents",
    [
        (*OUTPUTS[::8], *ANSWERS[::4], *PROCESSES[::3], *KERNEL[::2]),
        *(pytest.param(agents, marks=pytest.mark.slow) for agents in (OUTPUTS, ANSWERS, PROCESSES, KERNEL)),
    ],
    ids=["some", "outputs", "answers", "processes", "kernel"],
)
def test_hostile_agents_harm_only_themselves(tmp_path: Path, agents: Sequence[Hostile]) -> None:
    write_project(tmp_path, agents)
    check(agents, run(tmp_path, "--harness", "oracle", "--rollout-concurrency", "9"))


@pytest.mark.slow
def test_agents_that_fill_memory_harm_only_themselves(tmp_path: Path) -> None:
    write_project(tmp_path, MEMORY)
    check(MEMORY, run(tmp_path, "--harness", "oracle", "--rollout-concurrency", "6"))


@pytest.mark.parametrize(
    ("harness", "agents"),
    [
        pytest.param("codex", PROGRAMS[::4], marks=[needs_codex, pytest.mark.slow], id="codex-some"),
        pytest.param("codex", PROGRAMS, marks=[needs_codex, pytest.mark.slow], id="codex"),
        pytest.param(TINY, PROGRAMS, marks=pytest.mark.slow, id="tiny"),
    ],
)
def test_agents_that_attack_their_program_harm_only_themselves(
    tmp_path: Path, harness: str, agents: Sequence[Hostile]
) -> None:
    write_project(tmp_path, agents)
    with scripted_model(agents) as model:
        options = (f"--harness={harness}", "--model", "m", "--model-base-url", f"{model.url}/v1")
        finished = run(tmp_path, *options, "--rollout-concurrency", "9", memory_mib=768)
    check(agents, finished)
    assert {ask.headers.get("authorization", ask.headers.get("Authorization")) for ask in model.requests} == {
        f"Bearer {KEY}"
    }
    assert all(ask.path.startswith("/v1/") for ask in model.requests), {ask.path for ask in model.requests}
