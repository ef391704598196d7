"""Model requests as token sequences."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts import CaptureError, advantages, sequences
from tests.support.exporting import Exporter, capture, exchange, write
from tests.support.rows import run
from tests.support.tables import rows


def call(prompt: list[int], sampled: list[int], logprobs: list[float] | None = None) -> dict[str, Any]:
    return {"prompt_token_ids": prompt, "token_ids": sampled, "logprobs": logprobs or []}


def test_requests_are_one_sequence_if_each_prompt_begins_with_the_tokens_so_far() -> None:
    first, second = call([1, 2], [3], [-0.5]), call([1, 2, 3, 4], [5, 6], [-1.0, -2.0])
    [one] = sequences([first, second, call([1, 2, 3, 4, 5, 6], [7])])
    assert one.input_ids == [1, 2, 3, 4, 5, 6, 7]
    assert one.loss_mask == [0, 0, 1, 0, 1, 1, 1]
    assert one.logprobs == [], "the last request has none"
    [one] = sequences([first, second])
    assert one.logprobs == [0.0, 0.0, -0.5, 0.0, -1.0, -2.0]


def test_another_sequence_starts_where_the_tokens_differ_and_the_longest_match_is_extended() -> None:
    main, sub = call([1, 2], [3]), call([9], [8])
    found = sequences([main, sub, call([1, 2, 3, 4], [5]), call([9, 8, 7], [6]), call([1, 2, 3, 4, 9], [0]), main])
    assert [one.input_ids for one in found] == [[1, 2, 3, 4, 5], [9, 8, 7, 6], [1, 2, 3, 4, 9, 0], [1, 2, 3]]
    assert [one.loss_mask for one in found] == [[0, 0, 1, 0, 1], [0, 1, 0, 1], [0, 0, 0, 0, 0, 1], [0, 0, 1]]
    assert sequences([]) == []


@rows(
    ("one", "message"),
    [
        (call([1], []), "request 2: the inference server returned no token_ids; docs/training.md says how"),
        (call([], [1]), "request 2: the inference server returned no prompt_token_ids; "),
        (call([1], [2, 3], [-1.0]), "request 2: got 2 token_ids but 1 logprobs"),
    ],
)
def test_a_request_without_its_tokens_is_refused(one: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        sequences([call([1], [2]), one])


class Trace:
    """A random rollout: an agent that appends, compacts its history, starts sub-agents and tokenizes texts again."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.requests: list[dict[str, Any]] = []
        self.sampled: Counter[tuple[int, float]] = Counter()
        self._next = 0

    def fill(self) -> Trace:
        history = self._tokens(4)
        for _ in range(self.random.randrange(1, 12)):
            kind = self.random.choice(["append", "append", "append", "compact", "sub-agent", "again", "repeat"])
            if kind == "sub-agent":
                self._ask(self._ask(self._tokens(3)) + self._tokens(2))
            if kind == "compact":
                history = history[:2] + self._tokens(3)
            if kind == "again" and history:  # one token became another one
                at = self.random.randrange(len(history))
                history = [*history[:at], self._tokens(1)[0], *history[at + 1 :]]
            after = self._ask(history)
            history = history if kind == "repeat" else after + self._tokens(self.random.randrange(0, 4))
        return self

    def _ask(self, prompt: list[int]) -> list[int]:
        sampled = self._tokens(self.random.randrange(1, 5))
        logprobs = [-self.random.random() for _ in sampled]
        self.requests.append(call(list(prompt), sampled, logprobs))
        self.sampled.update(zip(sampled, logprobs, strict=True))
        return prompt + sampled

    def _tokens(self, number: int) -> list[int]:
        """New ids, so that each sampled token can be recognized."""
        self._next += number
        return list(range(self._next - number, self._next))


def test_sequences_hold_every_sampled_token_of_random_rollouts_exactly_once() -> None:
    forks = 0
    for seed in range(500):
        trace = Trace(seed).fill()
        found = sequences(trace.requests)
        kept = Counter(
            (token, logprob)
            for one in found
            for token, masked, logprob in zip(one.input_ids, one.loss_mask, one.logprobs, strict=True)
            if masked
        )
        assert kept == trace.sampled, seed
        prompts = {tuple(request["prompt_token_ids"] + request["token_ids"]) for request in trace.requests}
        assert all(tuple(one.input_ids) in prompts for one in found), seed
        forks += len(found) - 1
    assert forks > 500, "the agents hardly changed their histories"


# The command


def requests_of_samples() -> Iterator[list[dict[str, Any]]]:
    """Yield the requests of three samples: one sequence; two; one without log probabilities."""
    first = exchange("s0", prompt_token_ids=[1, 2], token_ids=[3], logprobs=[-0.5])
    second = exchange("s0", prompt_token_ids=[1, 2, 3, 4], token_ids=[5], logprobs=[-0.25])
    yield [first, second]
    yield [{**first, "session_id": "s1"}, {**second, "session_id": "s1", "prompt_token_ids": [1, 9]}]
    yield [{**first, "session_id": "s2", "logprobs": None}]


def test_export_writes_a_line_per_sequence_in_fixed_types(export: Exporter, tmp_path: Path) -> None:
    samples = run({"t": [1.0, 0.0, 0.0, 0.0, None]}, labels={"policy": "3"})
    rows = [replace(row, session_id=f"s{row.sample}") for row in samples]
    folder = tmp_path / "captures"
    for row, requests in zip(rows, requests_of_samples(), strict=False):
        capture(folder, row.rollout_id, *requests)
    found = export(write(tmp_path / "a.jsonl", rows), "--capture", folder, format="sequences")
    assert export.err == (
        "exported 1 group, 5 samples, masked: 1 error; 3 rollouts with 5 model requests in 4 sequences "
        "(1.33 per rollout); 1 rollout made no request\n"
    )
    advantage = advantages([1.0, 0.0, 0.0, 0.0, None])
    assert found[0] == {
        "input_ids": [1, 2, 3, 4, 5],
        "loss_mask": [0, 0, 1, 0, 1],
        "logprobs": [0.0, 0.0, -0.5, 0.0, -0.25],
        "advantage": advantage[0],
        "reward": 1.0,
        "group_id": rows[0].group_id,
        "rollout_id": rows[0].rollout_id,
        "sequence": 0,
        "sequences": 1,
        "labels": {"policy": "3"},
        "complete": False,
    }
    assert [(one["rollout_id"], one["sequence"], one["sequences"]) for one in found[1:]] == [
        (rows[1].rollout_id, 0, 2),
        (rows[1].rollout_id, 1, 2),
        (rows[2].rollout_id, 0, 1),
    ]
    assert found[3]["logprobs"] == []
    assert all(list(one) == list(found[0]) for one in found)
