"""Whose doing a failed Turn is: what the agent can cause is its own code and reward 0, and nothing else is."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import pytest

from pytest_core_rollouts.agents_api.fault_policies import turn_fault_policy
from pytest_core_rollouts.embedded.harnesses import TurnFailed
from pytest_core_rollouts.embedded.harnesses.base import (
    Ended,
    failure_of_exit,
    failure_of_killed_sandbox,
)
from pytest_core_rollouts.embedded.harnesses.native import LINES, EventLines
from pytest_core_rollouts.embedded.model import ModelProxy, ModelSettings
from pytest_core_rollouts.embedded.model.failures import ModelFailure
from pytest_core_rollouts.embedded.model_provider import ModelProvider
from pytest_core_rollouts.embedded.sandbox import Completed
from pytest_core_rollouts.embedded.sandbox.files import collect_outputs
from tests.support.proxies import LABELS
from tests.support.tables import rows

BUSY = ModelFailure("server_overloaded", "The model's server answered 503")
REFUSED = ModelFailure("invalid_request", "The model's server answered 400")


@rows(
    ("replied", "failure", "status", "oom", "code", "words"),
    [
        (False, None, 1, False, "internal_error", "ended with status 1 before the model's first reply: no such option"),
        (False, None, 132, False, "internal_error", "was ended by signal 4 before the model's first reply"),
        (False, REFUSED, 1, False, "invalid_request", "answered 400"),
        (True, None, 1, False, "agent_exited", "ended with status 1: no such option"),
        (True, None, 0, False, "agent_exited", "ended with status 0: no such option"),
        (True, BUSY, 1, False, "server_overloaded", "answered 503"),
        (True, REFUSED, 1, False, "agent_exited", "its last call of the model failed: The model's server answered 400"),
        (True, BUSY, 137, False, "agent_killed", "was ended by signal 9"),
        (True, None, 137, True, "sandbox_error", "the machine ran out of memory meanwhile"),
        (True, None, 134, True, "agent_killed", "was ended by signal 6"),
        (True, None, 1, True, "agent_exited", "ended with status 1"),
    ],
)
def test_fault_of_a_failed_program(
    replied: bool, failure: ModelFailure | None, status: int, oom: bool, code: str, words: str
) -> None:
    ended = Ended(status, "no such option", machine_oom=oom)
    provider = ModelProvider("responses", "http://127.0.0.1:9", "key")
    with socket.socket(socket.AF_UNIX) as unused:
        proxy = ModelProxy(unused, Path("unused"), provider, ModelSettings(), LABELS, replied=replied)
    if replied and failure is REFUSED:
        proxy.agents_failure = failure
    else:
        proxy.failure = failure
    failed = failure_of_exit(proxy, "", ended)
    assert failed.code == code
    assert len(str(failure_of_exit(proxy, "x" * 10**6, ended))) < 700, "an agent can write what a program says"
    assert words in str(failed)
    assert (turn_fault_policy(code).reward == 0.0) == code.startswith("agent_")


@rows(("limit_exceeded", "code"), [(True, "sandbox_limit_exceeded"), (False, "sandbox_error")])
def test_killed_sandbox_is_the_agents_fault_only_over_a_bound(limit_exceeded: bool, code: str) -> None:
    done = Completed(137, b"", killed="disk: more than 5 bytes used", limit_exceeded=limit_exceeded)
    assert failure_of_killed_sandbox(done).code == code


def test_lack_of_descriptors_does_not_reject_outputs(tmp_path: Path) -> None:
    (tmp_path / "workspace" / "outputs" / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "workspace" / "outputs" / "a" / "b" / "c" / "d").touch()
    lowest = os.open("/", os.O_RDONLY)
    os.close(lowest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 4, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            collect_outputs(tmp_path / "workspace", tmp_path / "into")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@rows(
    "line",
    [
        b'{"type": 5}',
        b'{"type": "exit", "status": "x"}',
        b'{"type": "exit", "stderr": 5}',
        b'{"type": "item", "item": ' + b"[" * 60 + b"]" * 60 + b"}",
        b'{"type": "item", "item": {"query": [1, -1e999]}}',
        b'{"type": "item", "item": [' + b"[]," * 100_000 + b"1]}",
        b'{"type": "boom"}',
    ],
)
def test_a_malformed_event_is_skipped_with_a_warning(line: bytes) -> None:
    events = []

    def on_event(event: object) -> None:
        events.append(event)
        assert event != {"type": "boom"}, "as any mistake in handling an event"

    lines = EventLines(on_event)
    lines.feed(line + b'\n{"type": "good"}\n' + line + b"\n")
    assert events[-1] in ({"type": "good"}, {"type": "boom"})
    assert {"type": "good"} in events
    [warning] = lines.warnings()
    assert warning.startswith(f"2 events of the agent program skipped as malformed; the first: {line[:200].decode()} (")


def test_lines_that_are_not_events_are_bounded_too() -> None:
    """Each one takes time of a process that serves all other rollouts."""
    lines = EventLines(lambda event: None)
    with pytest.raises(TurnFailed, match=f"^The agent program printed more than {LINES} lines.$") as failure:
        lines.feed(b"\n" * LINES + b"\n")
    assert failure.value.code == "sandbox_limit_exceeded"
