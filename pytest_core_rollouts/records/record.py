"""One rollout's record: the row that is kept of it."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pytest_core_rollouts.records.jsonable import jsonable
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.strict_json import InvalidJSON, read_json

__all__ = [
    "INTERRUPTED",
    "SCHEMA",
    "STATUSES",
    "ItemsMode",
    "NotJSON",
    "RolloutRecord",
    "Status",
    "count_planned",
    "tokens_of",
]

SCHEMA = 1

Status = Literal["completed", "failed", "cancelled", "timeout", "error"]
STATUSES: tuple[str, ...] = get_args(Status)
ItemsMode = Literal["inline", "none"]

INTERRUPTED = "the run was interrupted"
"""The `error` of a rollout that its own run cancelled: nothing went wrong with it, and a resume runs it."""

ROW_START = b'{"rollout_id"'
"""How every row begins."""


class RecordsError(Exception):
    """A records file that cannot be read or written; the text names the file (and line) and says what to do."""


class RecordsWarning(UserWarning):
    """Something in a records file, or in one that belongs to it, was passed over: its writer died in it."""


def warn(text: str) -> None:
    """Warn, and no more than that where warnings are errors (`-W error`): what a dead writer left stops nobody."""
    try:
        warnings.warn(text, RecordsWarning, stacklevel=4)
    except RecordsWarning:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RecordsWarning)
            warnings.warn(text, RecordsWarning, stacklevel=4)


class NotJSON(RecordsError):
    """A line that is no JSON: at the end of a file, a row that was cut off."""


@dataclass(frozen=True, kw_only=True, slots=True)  # a run holds thousands
class RolloutRecord:
    """One rollout: one Session of one agent on one task, and its grade. One line of the JSONL, fields in this order.

    `reward` is in [0, 1], or None where nothing was learned about the agent: the rollout was cancelled, or could not
    be run or graded. Such a row is missing data, never a 0. Raises ValueError for a reward its status cannot have.
    """

    rollout_id: str
    task: str
    harness: str
    model: str
    sample: int
    session_id: str | None = None
    status: Status
    reward: float | None
    answer: Any = None  # the parsed answer, or None
    duration_s: float | None = None  # create to the Turn's end, seconds; None when no Session was created
    usage: Mapping[str, Any] | None = None  # token counts of the last Turn, as returned; None where unknown
    items: Sequence[Any] | None = None  # the trajectory, every Item as returned; None when it was not kept
    error: str | None = None

    schema: int = SCHEMA
    run_id: str
    group_id: str
    agent: Mapping[str, Any] = field(default_factory=dict)  # {name (of an agent file, or None), digest, ...}
    labels: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 0
    started_at: str | None = None  # ISO 8601, UTC, with its offset
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds: create, prepare, turn, fetch
    settings: Mapping[str, Any] = field(default_factory=dict)
    input_digest: str = ""
    grading_digest: str = ""
    reasons: Sequence[Any] = ()  # [{path, expected, answered}]
    answer_text: str | None = None  # what the agent wrote, when it is no JSON
    outputs: Sequence[Any] = ()  # files that the agent made and that were kept, see `kept_files`
    items_file: Mapping[str, Any] | None = None  # where the trajectory is, if not in the row, see `item_files`
    notes: Sequence[str] = ()
    planned: Mapping[str, int] = field(default_factory=dict)  # see `count_planned`
    request_ids: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is none of {', '.join(STATUSES)}")
        if self.reward is None:
            if self.status in ("completed", "timeout"):
                raise ValueError(f"a rollout that is {self.status} has a reward; this one has none")
        elif self.status in ("cancelled", "error"):
            raise ValueError(f"a rollout with status {self.status} has no reward; this one has {self.reward!r}")
        elif not (math.isfinite(self.reward) and 0 <= self.reward <= 1):
            raise ValueError(f"reward {self.reward!r} is not between 0 and 1")

    @property
    def graded(self) -> bool:
        """Whether this row says something about the agent."""
        return self.reward is not None

    @property
    def interrupted(self) -> bool:
        """Whether its run was stopped before it came to anything: it counts as not run."""
        return self.status == "cancelled" and self.error == INTERRUPTED

    @property
    def solved(self) -> bool:
        """Whether the reward is one that passes: 1, or the task's own `pass_threshold`."""
        threshold = self.settings.get("pass_threshold", 1)
        return self.reward is not None and self.reward >= (threshold if isinstance(threshold, (int, float)) else 1)

    @property
    def tokens(self) -> int | None:
        """Input and output tokens together; None where the usage does not say."""
        return tokens_of(self.usage)

    @property
    def xfail(self) -> bool:
        """Whether the rollout was expected to fail: it is told with the rest, and no gate judges it."""
        return bool(self.settings.get("xfail"))

    @property
    def digests(self) -> tuple[str, str, str]:
        """What the rollout was of: task input, grading, agent."""
        return self.input_digest, self.grading_digest, str(self.agent.get("digest", ""))

    @property
    def answered(self) -> bool:
        """Whether the agent came to its end and what it left was fetched, graded or not."""
        return self.status == "completed" or (self.status in ("error", "failed") and "fetch" in self.timings)

    @property
    def work(self) -> str:
        """What must be the same for two rows to be of the same work: input, grading, agent, labels and settings."""
        settings = {name: self.settings.get(name) for name in ("timeout", "network", "outputs", "xfail")}
        return json.dumps([self.digests, dict(self.labels), settings], sort_keys=True, default=str)

    def to_line(self, masks: Masker | None = None, *, items: ItemsMode = "inline") -> bytes:
        """The row as strict JSON in ASCII, with its newline. Known secrets are masked, `items="none"` leaves Items out.

        Ids, digests, status and numbers are never masked: they hold no free text, and a row must stay findable.
        """
        row = {name: jsonable(getattr(self, name)) for name in _FIELDS}
        if items == "none":
            row["items"] = None
        if masks is not None:
            row = {name: _masked(name, value, masks) for name, value in row.items()}
        return json.dumps(row, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> RolloutRecord:
        """The record of one line. Fields this version does not know are ignored; RecordsError for anything else.

        Raises RecordsError, without a file's name, for a line that is no record or was written by a newer schema.
        """
        row = parse_row(line)
        if not isinstance(row, dict) or type(row.get("schema")) is not int:
            raise RecordsError("not a rollout record: a JSON object with the field 'schema' was expected")
        if row["schema"] > SCHEMA:
            raise RecordsError(
                f"written with schema {row['schema']}, newer than {SCHEMA}: upgrade pytest-core-rollouts"
            )
        try:
            return cls(**{name: _checked(name, row[name]) for name in _FIELDS if name in row})
        except (TypeError, ValueError) as error:
            raise RecordsError(
                f"not a rollout record: {str(error).removeprefix('RolloutRecord.__init__() ')}"
            ) from None


_FIELDS = tuple(entry.name for entry in dataclasses.fields(RolloutRecord))
_UNMASKED = frozenset(
    (
        *("rollout_id", "group_id", "run_id", "sample", "status", "reward", "duration_s", "schema", "attempt"),
        *("started_at", "timings", "input_digest", "grading_digest", "planned"),
    )
)
_NUMBER = (int, float)
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("rollout_id", "task", "harness", "model", "status", "run_id", "group_id"), (str,)),
    **dict.fromkeys(("input_digest", "grading_digest"), (str,)),
    **dict.fromkeys(("session_id", "error", "started_at", "answer_text"), (str, type(None))),
    **dict.fromkeys(("sample", "attempt"), (int,)),
    **dict.fromkeys(("reward", "duration_s"), (*_NUMBER, type(None))),
    **dict.fromkeys(("agent", "labels", "timings", "settings", "planned", "request_ids"), (dict,)),
    **dict.fromkeys(("reasons", "notes", "outputs"), (list,)),
    **dict.fromkeys(("usage", "items_file"), (dict, type(None))),
    "items": (list, type(None)),
}
_BOUND = 2**53
"""From here on numbers are none that a row has, and few readers take them for what they are."""


def _is_count(entry: Any) -> bool:
    return type(entry) is int and 0 <= entry < _BOUND


def _is_kept_file(entry: Any) -> bool:
    """Whether it is as `kept_files` writes it."""
    if not isinstance(entry, dict) or type(entry.get("size")) is not int:
        return False
    return all(isinstance(entry.get(key), str) for key in ("path", "file", "sha256"))


_HOLDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "planned": ("counts", _is_count),
    "notes": ("texts", lambda entry: isinstance(entry, str)),
    "outputs": ("files that were kept", _is_kept_file),
}
"""What is read of rows without asking again."""


def _masked(name: str, value: Any, masks: Masker) -> Any:
    """A field of a row without secrets. What was answered, and is graded again some day, loses known ones alone."""
    if name in _UNMASKED or value is None:
        return value
    if name == "error":
        return masks.message(value)
    if name == "notes":
        return list(map(masks.message, value))
    return masks.trajectory(value) if name in ("items", "settings") else masks.data(value)


def _checked(name: str, value: Any) -> Any:
    types = _TYPES.get(name)
    if types and (not isinstance(value, types) or isinstance(value, bool)):
        raise ValueError(f"{name!r} is {type(value).__name__}")
    if isinstance(value, _NUMBER) and not -_BOUND < value < _BOUND:
        raise ValueError(f"{name!r} is too large a number")
    if name in _HOLDS:
        what, fits = _HOLDS[name]
        if not all(map(fits, value.values() if isinstance(value, dict) else value)):
            raise ValueError(f"{name!r} holds something else than {what}")
    if name == "agent" and not isinstance(value.get("name"), (str, type(None))):
        raise ValueError("the agent's 'name' is no text")
    return value


def parse_row(line: bytes) -> Any:
    """Return the value of a line. Raises NotJSON."""
    try:
        return read_json(line)
    except InvalidJSON as error:
        raise NotJSON(f"not JSON ({error.problem})") from None


def tokens_of(usage: Mapping[str, Any] | None) -> int | None:
    """Input and output tokens together; None where the usage does not say."""
    counts = [(usage or {}).get(key) for key in ("total_tokens", "input_tokens", "output_tokens")]
    total, *parts = [count if _is_count(count) else None for count in counts]
    return total if total is not None or None in parts else sum(part or 0 for part in parts)


def count_planned(rollouts: Iterable[tuple[str, str]]) -> dict[tuple[str, str], dict[str, int]]:
    """What a run was going to do, told so that each row can carry it: (agent, task) of every rollout selected.

    Gives for each (agent, task): {"run": rollouts selected in all, "agent": those of this agent, "tasks": this agent's
    tasks, "group": the samples of this task and agent}. With it a report from rows alone knows what never ran.
    """
    groups: dict[tuple[str, str], int] = {}
    for key in rollouts:
        groups[key] = groups.get(key, 0) + 1
    of_agent: dict[str, list[int]] = {}
    for (agent, _), samples in groups.items():
        of_agent.setdefault(agent, []).append(samples)
    total = sum(groups.values())
    return {
        key: {"run": total, "agent": sum(of_agent[key[0]]), "tasks": len(of_agent[key[0]]), "group": samples}
        for key, samples in groups.items()
    }
