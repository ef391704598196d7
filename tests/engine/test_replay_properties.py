"""A replay of unchanged tasks changes no reward, tried on generated answers, kept files and runs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pytest_core_rollouts.engine.replay import MASKED, Replay, Replayer
from pytest_core_rollouts.engine.store import RowStore
from pytest_core_rollouts.grading.answers import TEXT_LIMIT, Answer, Grade, read_answer
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import read_records
from pytest_core_rollouts.rollout.attempt_state import AttemptState
from pytest_core_rollouts.tasks.matrix import Rollout
from pytest_core_rollouts.tasks.task import Task
from tests.support.rollouts import plan

SECRET = 'pässword, of "ours"'
RUNS = ("20261129T120000Z-1f0c", "20261129T120000Z-2f0c")
TASK = Task(id="a", instruction="x", expected={"x": 1})


class Case(NamedTuple):
    """What one agent left, in one of two runs. `broken`: its grader raised, so the row has no reward."""

    data: bytes
    files: Mapping[str, bytes] = MappingProxyType({})
    run: int = 0
    broken: bool = False


def fingerprint(task: Task, answer: Answer, rollout: object) -> Grade:
    """A reward that differs if a grader is shown anything else: the answer, its text, its problem or the files."""
    shown = repr((answer.value, answer.text, answer.problem, sorted(answer.artifacts.items())))
    digest = hashlib.sha256(shown.encode("utf-8", "surrogatepass")).digest()
    return Grade(int.from_bytes(digest[:4], "big") / 2**32, note="a note of the grader's" if digest[4] % 2 else None)


TEXTS = st.text(max_size=6) | st.sampled_from(["\ud835", "\udc00\ud83d", "\ufffd", "\\ud835", SECRET, f"see {SECRET}!"])
NUMBERS = st.integers() | st.integers(-(10**300), 10**300) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
DATA = VALUES.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20) | TEXTS.map(
    lambda text: text.encode("utf-8", "replace")
)  # fmt: skip
FILES = st.dictionaries(
    st.sampled_from(["a.txt", "b/c.bin", "d\n.md", SECRET.replace('"', "")]),
    st.binary(max_size=8) | st.just(f"x {SECRET}".encode()),
    max_size=2,
)
CASES = st.lists(st.builds(Case, DATA, FILES, st.integers(0, 1), st.booleans()), min_size=1, max_size=4)


def record(case: Case, rollout: Rollout, store: RowStore) -> RolloutRecord:
    """The row of one rollout, made as an attempt makes it."""
    state = AttemptState(rollout, attempt=1, session_id="sess_1")
    state.created = state.turn_seen = state.turn_ended = state.fetched = state.start
    state.answer = replace(read_answer(case.data), artifacts=case.files)
    outputs = store.save_files(rollout, 1, case.files) if case.files else ()
    if case.broken:
        return state.record("error", None, "the grader raised NameError: name 'y' is not defined", {}, outputs)
    state.grade = fingerprint(rollout.task, state.answer, rollout)
    return state.record("completed", state.grade.reward, None, {}, outputs)


def store(path: Path) -> RowStore:
    made = RowStore(path)
    made.mask([SECRET])
    return made


def recorded(path: Path, cases: Sequence[Case]) -> None:
    out = store(path)
    for run in (0, 1):
        for sample, case in enumerate(case for case in cases if case.run == run):
            out.save(record(case, plan(TASK, run_id=RUNS[run], sample=sample), out))


def replayed(source: Path, path: Path) -> None:
    """Grade all rows of a file again, as a run with `--rollout-replay` does."""
    replay, out = Replay.open(source), store(path)
    replayer = Replayer(replay, fingerprint, lambda task: False, out.save, out.explain, out.save_files)

    async def main() -> None:
        for agent, sample in replay.rollouts_of("a"):
            await replayer.run(plan(TASK, agent, run_id=f"20261130T120000Z-{path.stem}", sample=sample))

    asyncio.run(main())


def rewards(rows: Sequence[RolloutRecord]) -> list[tuple[str, float | None]]:
    return [(row.group_id, row.reward) for row in rows]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CASES)
@example([Case(b"null"), Case(b"1e300"), Case(b"-9007199254740992"), Case(b'"x"'), Case(b"[]"), Case(b"")])
@example(
    [Case(b'{"x": "\\ud835"}'), Case(b'{"\\ud835": 1, "\\ufffd": 2}', run=1), Case(b'{"x": "\xef\xbf\xbd"}', run=1)]
)
@example([Case(b'{"x": ' * 99 + b"1" + b"}" * 99), Case(b"[" * 101), Case(b"x" * TEXT_LIMIT * 2)])
@example([Case(json.dumps({"\\ud835": SECRET, "\ud835": None}).encode())])
@example([Case(json.dumps({"x": SECRET, "y": "\ud835"}).encode()), Case(b"{}", {"a": SECRET.encode()}, broken=True)])
def test_a_replay_gives_a_grader_the_same_input(cases: list[Case]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("old.jsonl", "00a1.jsonl", "00a2.jsonl")]
        recorded(paths[0], cases)
        replayed(paths[0], paths[1])
        replayed(paths[1], paths[2])
        old, *new = ([*read_records(path)] for path in paths)
        right = [fingerprint(TASK, replace(read_answer(case.data), artifacts=case.files), None).reward
                 for case in sorted(cases, key=lambda case: case.run)]  # fmt: skip
        graded = [(row.group_id, row.reward if row.masked else reward) for row, reward in zip(old, right, strict=True)]
        assert [rewards(rows) for rows in new] == [graded] * 2
        assert [[row.masked for row in rows] for rows in new] == [[row.masked for row in old]] * 2
        for row in (row for rows in new for row in rows):
            assert row.notes.count(MASKED) == row.masked
