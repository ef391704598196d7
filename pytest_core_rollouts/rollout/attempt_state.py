"""What is known of one attempt at a rollout, and the record that can be made of it at any time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts import __version__
from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.records.record import RolloutRecord, Status, tokens_of
from pytest_core_rollouts.tasks.matrix import Rollout
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.text import reward_text

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Turn

EMBEDDED = "embedded"
"""What a row calls a Core that its run started."""


@dataclass
class AttemptState:
    """Filled in while the attempt runs. Times are on the monotonic clock, except for `started_at`."""

    rollout: Rollout
    attempt: int
    notes: list[str] = field(default_factory=list)
    earlier_usage: tuple[Mapping[str, Any] | None, ...] = ()
    """The usage of each earlier attempt that had a Turn; None: unknown."""
    core: str | None = None
    """The Core's URL, or EMBEDDED."""
    session_id: str | None = None
    turn: Turn | None = None
    items: list[dict[str, Any]] | None = None
    answer: Answer = field(default_factory=Answer)
    grade: Grade | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    start: float = field(default_factory=time.monotonic)
    """When the attempt started. The time that it `waited` does not count, so it is later by that."""
    waited: float = 0.0
    """Seconds for which the Core kept the creation of the Session waiting."""
    created: float | None = None
    """When the Session was created."""
    turn_seen: float | None = None
    """When the Turn was first seen."""
    turn_ended: float | None = None
    """When the Turn's end was seen, or waiting for it was given up."""
    fetched: float | None = None
    """When the answer and the Items had been fetched."""

    def start_now(self) -> None:
        """Set the start to now, after a pause."""
        self.started_at, self.start = datetime.now(timezone.utc), time.monotonic()

    def start_earlier(self, age: float) -> None:
        """Set the start to the creation of an adopted Session, `age` seconds ago."""
        self.started_at = datetime.now(timezone.utc) - timedelta(seconds=age)
        self.start = self.created = time.monotonic() - age
        self.waited = 0.0

    @property
    def turn_id(self) -> str | None:
        """Id of the Turn. None if no Turn was seen."""
        return None if self.turn is None else self.turn["id"]

    @property
    def timings(self) -> dict[str, float]:
        """Seconds that each completed stage took: create, prepare, turn, fetch."""
        stages = {"create": self.created, "prepare": self.turn_seen, "turn": self.turn_ended, "fetch": self.fetched}
        timings: dict[str, float] = {}
        stage_start = self.start
        for name, stage_end in stages.items():
            if stage_end is not None:
                timings[name] = round(max(0.0, stage_end - stage_start), 4)
                stage_start = stage_end
        return timings

    @property
    def spent(self) -> int | None:
        """Tokens of this attempt and of earlier ones. None if the usage of one is unknown."""
        counts = [tokens_of(usage) for usage in self.usages]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def usages(self) -> tuple[Mapping[str, Any] | None, ...]:
        """The usage of each attempt so far that had a Turn; None: unknown."""
        return (*self.earlier_usage, *(() if self.turn is None else (self.turn.get("usage"),)))

    @property
    def duration_s(self) -> float | None:
        """Seconds from the start to the Turn's end, or to now. None without a Session."""
        if self.session_id is None:
            return None
        return round((self.turn_ended or time.monotonic()) - self.start, 4)

    def record(
        self,
        status: Status,
        reward: float | None,
        error: str | None,
        request_ids: Mapping[str, str],
        outputs: Sequence[Mapping[str, Any]] = (),
    ) -> RolloutRecord:
        """Return the attempt's record. `request_ids`: see `Client`; `outputs`: the files that were kept."""
        grade, answer = self.grade, self.answer
        found = (answer.problem, None if grade is None else grade.note)
        notes = [*self.notes, *dict.fromkeys(note for note in found if note)]
        is_null = self.fetched is not None and answer.value is None and answer.problem is None
        return RolloutRecord(
            **_identity(self.rollout, self.attempt),
            session_id=self.session_id,
            status=status,
            reward=reward,
            answer=answer.value,
            duration_s=self.duration_s,
            usage=None if self.turn is None else self.turn.get("usage"),
            items=self.items,
            error=error,
            started_at=self.started_at.isoformat(timespec="milliseconds"),
            timings=self.timings,
            settings={**_settings(self.rollout), **({} if self.core is None else {"core": self.core})},
            reasons=_reasons(grade),
            metrics={} if grade is None else dict(grade.metrics),
            answer_text=answer.text,
            answer_json="null" if is_null else None,
            outputs=outputs,
            notes=notes,
            request_ids=dict(request_ids),
            spent=self.spent,
            earlier_usage=self.earlier_usage,
        )


def lost_record(rollout: Rollout, error: str) -> RolloutRecord:
    """Return the record of a rollout whose process died before it could save one."""
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
        "tags": list(task.tags),
    }


def _settings(rollout: Rollout) -> dict[str, Any]:
    """Return the other settings on which the result depends. They contain no key."""
    outputs = rollout.task.outputs
    return {
        **grading_settings(rollout),
        "timeout": rollout.timeout,
        "network": rollout.network.wire(),
        **({"outputs": asdict(outputs)} if outputs is not None else {}),
        "protocol": rollout.agent.effective_protocol,
        "base_url": rollout.agent.base_url,
        **({"container_size": rollout.agent.container_size} if rollout.agent.container_size else {}),
        **({"failed_turns": rollout.failed_turns} if rollout.failed_turns == "zero" else {}),
        **({"stop": rollout.stop} if rollout.stop else {}),
        **({"model_params": dict(rollout.model_params)} if rollout.model_params else {}),
        "versions": {"pytest-core-rollouts": __version__},
    }


def grading_settings(rollout: Rollout) -> dict[str, Any]:
    """Return the settings that grading depends on."""
    tolerance, threshold = rollout.task.tolerance, rollout.task.pass_threshold
    return {
        **({"pass_threshold": threshold} if threshold != 1 else {}),
        **({"xfail": rollout.xfail} if rollout.xfail is not None else {}),
        "tolerance": {"relative": tolerance.relative, "absolute": tolerance.absolute},
    }


def grade_note(task: Task, answer: Answer, grade: Grade) -> str | None:
    """Return what a grade below 1 says about the answer as a whole; None if only its reasons say something."""
    if grade.note or answer.problem:
        return grade.note or answer.problem
    return f"grader.py gave {reward_text(grade.reward)}" if task.grader is not None else None


def _reasons(grade: Grade | None) -> Sequence[dict[str, Any]]:
    return [] if grade is None else [dict(vars(reason)) for reason in grade.reasons]
