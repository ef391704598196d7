"""What is known of one attempt at a rollout so far, and the record that is made of it at any time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts import __version__
from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.records.record import RolloutRecord, Status
from pytest_core_rollouts.tasks.matrix import Rollout

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Turn


@dataclass
class Progress:
    """Filled in as the attempt goes on. Times are monotonic."""

    rollout: Rollout
    attempt: int
    notes: list[str] = field(default_factory=list)
    session_id: str | None = None
    turn: Turn | None = None
    items: list[dict[str, Any]] | None = None
    answer: Answer = field(default_factory=Answer)
    grade: Grade | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    start: float = field(default_factory=time.monotonic)
    """When it began, later by what it `waited`."""
    waited: float = 0.0
    """Seconds for which the Core kept its creation waiting."""
    created: float | None = None
    began: float | None = None
    """When the Turn was first seen."""
    ended: float | None = None
    """When the Turn's end was seen, or waiting for it was given up."""
    fetched: float | None = None

    def begin(self) -> None:
        """It begins only now."""
        self.started_at, self.start = datetime.now(timezone.utc), time.monotonic()

    def begin_earlier(self, age: float) -> None:
        """The Session existed: the attempt began when it was created, `age` seconds ago."""
        self.started_at = datetime.now(timezone.utc) - timedelta(seconds=age)
        self.start = self.created = time.monotonic() - age
        self.waited = 0.0

    @property
    def turn_id(self) -> str | None:
        return None if self.turn is None else self.turn["id"]

    @property
    def timings(self) -> dict[str, float]:
        """Seconds that each stage took, as far as it came."""
        stages = {"create": self.created, "prepare": self.began, "turn": self.ended, "fetch": self.fetched}
        timings: dict[str, float] = {}
        since = self.start
        for name, until in stages.items():
            if until is not None:
                timings[name] = round(max(0.0, until - since), 4)
                since = until
        return timings

    @property
    def duration_s(self) -> float | None:
        """Seconds from create to the Turn's end; None without a Session."""
        if self.session_id is None:
            return None
        return round((self.ended or time.monotonic()) - self.start, 4)

    def record(
        self,
        status: Status,
        reward: float | None,
        error: str | None,
        request_ids: Mapping[str, str],
        outputs: Sequence[Mapping[str, Any]] = (),
    ) -> RolloutRecord:
        grade = self.grade
        notes = [*self.notes, *((grade.note,) if grade is not None and grade.note else ())]
        return RolloutRecord(
            **_identity(self.rollout, self.attempt),
            session_id=self.session_id,
            status=status,
            reward=reward,
            answer=self.answer.value,
            duration_s=self.duration_s,
            usage=None if self.turn is None else self.turn.get("usage"),
            items=self.items,
            error=error,
            started_at=self.started_at.isoformat(timespec="milliseconds"),
            timings=self.timings,
            settings=_settings(self.rollout),
            reasons=_reasons(grade),
            answer_text=self.answer.text,
            outputs=outputs,
            notes=notes,
            request_ids=dict(request_ids),
        )


def lost_record(rollout: Rollout, error: str) -> RolloutRecord:
    """The record of a rollout whose own process could not write one."""
    return RolloutRecord(
        **_identity(rollout, rollout.attempt),
        status="error",
        reward=None,
        error=error,
        settings=_settings(rollout),
    )


def _identity(rollout: Rollout, attempt: int) -> dict[str, Any]:
    task, agent = rollout.task, rollout.agent
    return {
        "rollout_id": rollout.rollout_id,
        "task": task.id,
        "harness": agent.harness,
        "model": agent.model,
        "sample": rollout.sample,
        "run_id": rollout.run_id,
        "group_id": rollout.group_id,
        "agent": {"name": agent.name, "slug": agent.slug, "digest": agent.digest},
        "labels": dict(rollout.labels),
        "attempt": attempt,
        "input_digest": task.input_digest,
        "grading_digest": task.grading_digest,
    }


def _settings(rollout: Rollout) -> dict[str, Any]:
    """What else decides the result; no key is among it."""
    outputs = rollout.task.outputs
    return {
        **grading_settings(rollout),
        "timeout": rollout.timeout,
        "network": rollout.network.wire(),
        **({"outputs": asdict(outputs)} if outputs is not None else {}),
        "protocol": rollout.agent.effective_protocol,
        "base_url": rollout.agent.base_url,
        **({"failed_turns": rollout.failed_turns} if rollout.failed_turns == "zero" else {}),
        **({"model_params": dict(rollout.model_params)} if rollout.model_params else {}),
        "versions": {"pytest-core-rollouts": __version__},
    }


def grading_settings(rollout: Rollout) -> dict[str, Any]:
    """The settings that say how an answer was graded."""
    tolerance, threshold = rollout.task.tolerance, rollout.task.pass_threshold
    return {
        **({"pass_threshold": threshold} if threshold != 1 else {}),
        **({"xfail": rollout.xfail} if rollout.xfail is not None else {}),
        "tolerance": {"relative": tolerance.relative, "absolute": tolerance.absolute},
    }


def _reasons(grade: Grade | None) -> Sequence[dict[str, Any]]:
    return [] if grade is None else [dict(vars(reason)) for reason in grade.reasons]
