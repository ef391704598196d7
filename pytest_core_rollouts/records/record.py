"""The row that is kept of one rollout: its fields, and how they are written, masked, checked and read.

Each field stands once, in `RolloutRecord`. Its `Column` says which types it has, how it is masked, whether it is left
out of memory when only numbers are needed, and what it means; docs/records.md is generated from that.
"""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pytest_core_rollouts.grading.answers import round_reward
from pytest_core_rollouts.records.jsonable import has_lone_surrogate, jsonable
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.records.why import why_text
from pytest_core_rollouts.strict_json import InvalidJSON, read_json

__all__ = [
    "INTERRUPTED",
    "SCHEMA",
    "STATUSES",
    "ItemsMode",
    "NotJSON",
    "RecordsError",
    "RecordsWarning",
    "RolloutRecord",
    "Status",
    "count_planned",
    "slim",
    "slim_rows",
    "tokens_of",
]

SCHEMA = 1

Status = Literal["completed", "failed", "cancelled", "timeout", "error"]
STATUSES: tuple[str, ...] = get_args(Status)
ItemsMode = Literal["inline", "none"]

INTERRUPTED = "the run was interrupted"
"""The `error` of a rollout that its own run cancelled: nothing went wrong with it, and a resume runs it."""

ROW_START = b'{"rollout_id"'
"""The first bytes of every row."""


class RecordsError(Exception):
    """A records file that can't be read or written. `str()` names the file (and line) and says what to do."""


class ContradictingRecords(RecordsError):
    """Files that can be read, but not merged: they say different things about one rollout or one run."""


class RecordsWarning(UserWarning):
    """Part of a records file, or of a file that belongs to it, was skipped because its writer was killed."""


class NotJSON(RecordsError):
    """A line that is not JSON. At the end of a file, it is a row that was cut off."""


def warn(text: str) -> None:
    """Issue a RecordsWarning. With `-W error` it is only shown: what a killed writer left must not stop anybody."""
    try:
        warnings.warn(text, RecordsWarning, stacklevel=4)
    except RecordsWarning:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RecordsWarning)
            warnings.warn(text, RecordsWarning, stacklevel=4)


# The fields of a row

_BOUND = 2**53
"""Larger numbers occur in no row, and few JSON readers read them exactly."""


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _BOUND


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_object_or_none(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _is_kept_file(value: Any) -> bool:
    """Return True for an entry that `kept_files` can have written."""
    if not isinstance(value, dict) or type(value.get("size")) is not int:
        return False
    return all(isinstance(value.get(key), str) for key in ("path", "file", "sha256"))


@dataclass(frozen=True)
class Column:
    """What is known of one field of a row."""

    doc: str
    """Its meaning, as Markdown, for docs/records.md."""
    types: tuple[type, ...] = ()
    """The types that its JSON value may have; empty for any value."""
    masks: Literal["nothing", "values", "messages", "fields"] = "values"
    """`values`: known secrets. `messages`: also what looks like a credential in text. `fields`: also the values of
    fields that are named like a credential. `nothing`: ids, digests and numbers, so that a row can be found again."""
    entries: tuple[str, Callable[[Any], bool]] | None = None
    """What a list or object may hold, in words and as a check."""
    large: bool = False
    """Whether `slim` leaves it out."""
    shared: bool = False
    """Whether the rows of one task and agent have it in common, so that `slim_rows` holds it once."""


def _column(*args: Any, **kwargs: Any) -> dict[str, Column]:
    return {"column": Column(*args, **kwargs)}


_TEXT, _COUNT, _OBJECT, _LIST = (str,), (int,), (dict,), (list,)
_OR_NONE = (type(None),)


@dataclass(frozen=True, kw_only=True, slots=True)  # a run holds thousands
class RolloutRecord:
    """One rollout: one Session of one agent on one task, and its grade. One line of the JSONL, fields in this order.

    `reward` is in [0, 1], or None if the rollout says nothing about the agent: it was cancelled, or could not be
    run or graded. Such a row is missing data, never a 0. Raises ValueError for a reward that its status can't have.
    docs/records.md describes every field.
    """

    rollout_id: str = field(
        metadata=_column(
            "`<run_id>.<task>.<agent>.<sample>`, at most 120 characters of `[A-Za-z0-9._-]`", _TEXT, "nothing"
        )
    )
    task: str = field(metadata=_column("the task's id", _TEXT, shared=True))
    harness: str = field(metadata=_column("the agent's harness; `default` if none was named", _TEXT, shared=True))
    model: str = field(metadata=_column("the agent's model; `default` if none was named", _TEXT, shared=True))
    sample: int = field(metadata=_column("the sample's number, from 0", _COUNT, "nothing"))
    session_id: str | None = field(
        default=None,
        metadata=_column(
            "the Core's Session, deleted after the rollout; null if none was created", (*_TEXT, *_OR_NONE)
        ),
    )
    status: Status = field(
        metadata=_column("`completed`, `failed`, `cancelled`, `timeout` or `error`", _TEXT, "nothing")
    )
    reward: float | None = field(
        metadata=_column(
            "0 to 1, or null if the rollout says nothing about the agent", (int, float, *_OR_NONE), "nothing"
        )
    )
    answer: Any = field(default=None, metadata=_column("the parsed `answer.json`, or null", large=True))
    duration_s: float | None = field(
        default=None,
        metadata=_column(
            "seconds from creating the Session to the end of its Turn; null if no Session was created",
            (int, float, *_OR_NONE),
            "nothing",
        ),
    )
    usage: Mapping[str, Any] | None = field(
        default=None,
        metadata=_column(
            "token counts of the last Turn as the Core returned them; null means unknown, not zero",
            (*_OBJECT, *_OR_NONE),
        ),
    )
    items: Sequence[Any] | None = field(
        default=None,
        metadata=_column(
            "the trajectory, every Item in order as returned; null with `--rollout-items none`, and with `files`, "
            "which stores it in its own file",
            (*_LIST, *_OR_NONE),
            "fields",
            large=True,
        ),
    )
    error: str | None = field(default=None, metadata=_column("what failed, or null", (*_TEXT, *_OR_NONE), "messages"))

    schema: int = field(default=SCHEMA, metadata=_column(f"version of this format: {SCHEMA}", (), "nothing"))
    run_id: str = field(metadata=_column("the run", _TEXT, "nothing", shared=True))
    group_id: str = field(metadata=_column("the id that all samples of one task by one agent share", _TEXT, "nothing"))
    agent: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=_column(
            "`name` (of an agent file), `slug`, `digest` (SHA-256 of everything about it except its name)",
            _OBJECT,
            shared=True,
        ),
    )
    labels: Mapping[str, str] = field(
        default_factory=dict, metadata=_column("from `--rollout-label`", _OBJECT, shared=True)
    )
    attempt: int = field(
        default=0,
        metadata=_column(
            "1, or more if earlier attempts failed because of the infrastructure; `notes` has their errors",
            _COUNT,
            "nothing",
        ),
    )
    started_at: str | None = field(default=None, metadata=_column("ISO 8601, in UTC", (*_TEXT, *_OR_NONE), "nothing"))
    timings: Mapping[str, float] = field(
        default_factory=dict,
        metadata=_column("seconds for `create`, `prepare` (the sandbox), `turn`, `fetch`", _OBJECT, "nothing"),
    )
    settings: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=_column(
            "what the rollout ran with: timeout, network, protocol, base URL, tolerance, versions; never a key. "
            "`core`: the Core's URL, or `embedded`; `pass_threshold`: the smallest reward that passes, if it is not 1; "
            "`xfail`: it was expected to fail, and "
            "no gate counts it; `failed_turns`: `zero` if a Turn that failed for an unnamed reason counts as reward "
            "0; `replay_of`: the file, run and rollout whose answer was graded again",
            _OBJECT,
            "fields",
            shared=True,
        ),
    )
    input_digest: str = field(
        default="", metadata=_column("SHA-256 of what the agent got", _TEXT, "nothing", shared=True)
    )
    grading_digest: str = field(
        default="", metadata=_column("SHA-256 of what grades it", _TEXT, "nothing", shared=True)
    )
    reasons: Sequence[Any] = field(
        default=(), metadata=_column("`{path, expected, answered}` for each place that differs", _LIST, large=True)
    )
    answer_text: str | None = field(
        default=None,
        metadata=_column("up to 64 KiB of an answer that is not JSON", (*_TEXT, *_OR_NONE), large=True),
    )
    outputs: Sequence[Any] = field(
        default=(),
        metadata=_column(
            "files that the agent made and that were kept: `[{path, size, sha256, file}]`; `path` below "
            "`/workspace/outputs`, `file` relative to the JSONL ([tasks](tasks.md#answers-beyond-one-json))",
            _LIST,
            entries=("kept files", _is_kept_file),
        ),
    )
    items_file: Mapping[str, Any] | None = field(
        default=None,
        metadata=_column(
            "where the trajectory is with `--rollout-items files`: `{file, items, size, sha256}`, `file` relative to "
            "the JSONL; else null",
            (*_OBJECT, *_OR_NONE),
        ),
    )
    notes: Sequence[str] = field(
        default=(),
        metadata=_column("further remarks, each a sentence", _LIST, "messages", entries=("strings", _is_string)),
    )
    planned: Mapping[str, int] = field(
        default_factory=dict,
        metadata=_column(
            "how many rollouts were planned for the run, the agent and the group, and how many tasks for the agent",
            _OBJECT,
            "nothing",
            entries=("counts", _is_count),
            shared=True,
        ),
    )
    request_ids: Mapping[str, str] = field(
        default_factory=dict,
        metadata=_column("the last `X-Request-Id` of each kind of call", _OBJECT, large=True),
    )
    answer_json: str | None = field(
        default=None,
        metadata=_column(
            "the JSON text of an answer that `answer` can't show as it was, so that it can be graded again: one with a "
            "lone surrogate, which many readers refuse (`answer` then shows the escapes), or `null`; else null",
            (*_TEXT, *_OR_NONE),
            "nothing",
            large=True,
        ),
    )
    masked: bool = field(
        default=False,
        metadata=_column(
            "true if a known secret was masked in the answer or in a kept file, so that a replay can't grade them "
            "again and keeps the reward",
            (bool,),
            "nothing",
        ),
    )
    spent: int | None = field(
        default=None,
        metadata=_column(
            "input and output tokens of all attempts, with those that failed because of the infrastructure; null means "
            "unknown",
            (*_COUNT, *_OR_NONE),
            "nothing",
        ),
    )
    why: str | None = field(
        default=None,
        metadata=_column(
            "why the reward is not 1, in one line of at most 120 characters: "
            "`total: 324 expected, 342 answered (+2 more)`; null if it is 1",
            (*_TEXT, *_OR_NONE),
            "messages",
        ),
    )
    split: str | None = field(
        default=None,
        metadata=_column(
            "SHA-256 (hex) of how the run was divided into shards, equal in all of them; null if it was not",
            (*_TEXT, *_OR_NONE),
            "nothing",
        ),
    )
    tags: Sequence[str] = field(
        default=(),
        metadata=_column("the task's tags", _LIST, "nothing", entries=("strings", _is_string), shared=True),
    )
    metrics: Mapping[str, float] = field(
        default_factory=dict,
        metadata=_column(
            "further numbers of the grader, by name; they are reported and never count",
            _OBJECT,
            entries=("finite numbers", _is_finite),
        ),
    )
    earlier_usage: Sequence[Mapping[str, Any] | None] = field(
        default=(),
        metadata=_column(
            "token counts of the attempts before the last one, like `usage`; null for one that is unknown",
            _LIST,
            entries=("objects and null", _is_object_or_none),
        ),
    )

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"unknown status {self.status!r}; expected {', '.join(STATUSES)}")
        if self.reward is None:
            if self.status in ("completed", "timeout"):
                raise ValueError(f"a rollout with status {self.status} must have a reward")
        elif self.status in ("cancelled", "error"):
            raise ValueError(f"a rollout with status {self.status} can't have a reward, got {self.reward!r}")
        elif not (math.isfinite(self.reward) and 0 <= round_reward(self.reward) <= 1):
            raise ValueError(f"expected a reward from 0 to 1, got {self.reward!r}")
        else:
            object.__setattr__(self, "reward", round_reward(self.reward))
        if self.why is None or self.reward == 1:  # rows of earlier versions have none
            object.__setattr__(self, "why", why_text(self))

    @property
    def graded(self) -> bool:
        """Whether this row says something about the agent."""
        return self.reward is not None

    @property
    def interrupted(self) -> bool:
        """Whether its run was stopped before it had a result: it counts as not run."""
        return self.status == "cancelled" and self.error == INTERRUPTED

    @property
    def solved(self) -> bool:
        """Whether the reward passes: 1, or the task's own `pass_threshold`."""
        threshold = self.settings.get("pass_threshold", 1)
        least = round_reward(threshold) or threshold if isinstance(threshold, (int, float)) else 1
        return self.reward is not None and self.reward >= least

    @property
    def tokens(self) -> int | None:
        """Input and output tokens of all attempts; of the last one in rows that lack `spent`. None: unknown."""
        return self.spent if self.spent is not None else tokens_of(self.usage)

    @property
    def xfail(self) -> bool:
        """Whether the rollout was expected to fail: it is reported with the rest, and no gate counts it."""
        return bool(self.settings.get("xfail"))

    @property
    def digests(self) -> tuple[str, str, str]:
        """The digests of the task's input, its grading and the agent."""
        return self.input_digest, self.grading_digest, str(self.agent.get("digest", ""))

    @property
    def answered(self) -> bool:
        """Whether the agent finished and its outputs were fetched, graded or not."""
        return self.status == "completed" or (self.status in ("error", "failed") and "fetch" in self.timings)

    @property
    def work(self) -> str:
        """A key that two rows share if they are of the same work: input, grading, agent, labels and settings."""
        settings = {name: self.settings.get(name) for name in ("timeout", "network", "outputs", "xfail")}
        return json.dumps([self.digests, dict(self.labels), settings], sort_keys=True, default=str)

    @property
    def group_key(self) -> tuple[str, str]:
        """A key that the samples of one group share. A resumed run may have samples of different work in one group."""
        return self.group_id, self.work

    def to_line(self, masks: Masker | None = None, *, items: ItemsMode = "inline") -> bytes:
        """Return the row as strict JSON in ASCII, with its newline. Known secrets are masked.

        `items="none"` leaves Items out. Ids, digests, status and numbers are never masked: they hold no free text, and
        a row must stay findable.
        """
        row = {name: jsonable(getattr(self, name)) for name in COLUMNS}
        if items == "none":
            row["items"] = None
        if row["answer"] != self.answer and has_lone_surrogate(self.answer):
            # Masked as data: in its text, a secret could begin in one value and end in another.
            answer = self.answer if masks is None else masks.data(self.answer)
            row["answer_json"] = json.dumps(answer, default=str)
            row["masked"] = row["masked"] or answer != self.answer
        if masks is not None:
            plain, row = row, {name: _masked(COLUMNS[name], value, masks) for name, value in row.items()}
            row["masked"] = row["masked"] or any(row[name] != plain[name] for name in ("answer", "answer_text"))
        row["masked"] = row["masked"] or any("masked" in entry for entry in row["outputs"])
        return json.dumps(row, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> RolloutRecord:
        """Return the record of one line. Fields that this version does not know are ignored.

        Raises RecordsError, without a file's name, for a line that is not a record or has a newer schema.
        """
        row = parse_row(line)
        if not isinstance(row, dict) or type(row.get("schema")) is not int:
            raise RecordsError('not a rollout record: expected a JSON object with the field "schema"')
        if row["schema"] > SCHEMA:
            raise RecordsError(f"schema {row['schema']} is newer than {SCHEMA}; upgrade pytest-core-rollouts")
        try:
            if row.get("answer_json") is not None:
                row["answer"] = read_json(_checked("answer_json", row["answer_json"]).encode())
                row["answer_json"] = None if row["answer"] is not None else "null"  # the others are written again
            values = ((name, row[name]) for name in COLUMNS if name in row)
            return cls(**{name: one if type(one) in _PLAIN[name] else _checked(name, one) for name, one in values})
        except (TypeError, ValueError) as error:
            raise RecordsError(
                f"not a rollout record: {str(error).removeprefix('RolloutRecord.__init__() ')}"
            ) from None


COLUMNS: dict[str, Column] = {entry.name: entry.metadata["column"] for entry in dataclasses.fields(RolloutRecord)}
"""All fields of a row, in their order."""
_NO_VALUES: dict[type, Any] = {dict: {}, list: ()}
_LEFT_OUT: dict[str, Any] = {
    name: _NO_VALUES.get(column.types[0]) if column.types and type(None) not in column.types else None
    for name, column in COLUMNS.items()
    if column.large
}
_PLAIN = {
    name: frozenset(() if column.entries or name == "agent" else column.types) - {int, float}
    for name, column in COLUMNS.items()
}
"""The types of a field whose every value is right, so that most values need no call."""
_SHARED = tuple(name for name, column in COLUMNS.items() if column.shared)


def _masked(column: Column, value: Any, masks: Masker) -> Any:
    """Return a field's value without secrets. Answers lose only known ones, because they may be graded again."""
    if column.masks == "nothing" or value is None:
        return value
    if column.masks == "messages":
        return masks.message(value) if isinstance(value, str) else list(map(masks.message, value))
    return masks.trajectory(value) if column.masks == "fields" else masks.data(value)


def _checked(name: str, value: Any) -> Any:
    """Return the value if the field can have it. Raises ValueError."""
    column = COLUMNS[name]
    if column.types and (not isinstance(value, column.types) or (isinstance(value, bool) and bool not in column.types)):
        raise ValueError(f'"{name}" can\'t be {type(value).__name__}')
    if column.types and isinstance(value, (int, float)) and not -_BOUND < value < _BOUND:
        raise ValueError(f'"{name}" is too large a number')
    if column.entries is not None:
        what, fits = column.entries
        if not all(map(fits, value.values() if isinstance(value, dict) else value)):
            raise ValueError(f'"{name}" must only hold {what}')
    if name == "agent" and not isinstance(value.get("name"), (str, type(None))):
        raise ValueError('the agent\'s "name" must be a string')
    return value


def parse_row(line: bytes) -> Any:
    """Return the value of a line. Raises NotJSON."""
    try:
        return read_json(line)
    except InvalidJSON as error:
        raise NotJSON(f"not JSON ({error.problem})") from None


# Rows in memory


def slim(record: RolloutRecord, **changes: Any) -> RolloutRecord:
    """Return the record without its large fields, so that thousands fit in memory; `changes` replaces others."""
    if not changes and all(getattr(record, name) == value for name, value in _LEFT_OUT.items()):
        return record
    return dataclasses.replace(record, **_LEFT_OUT, **changes)


def slim_rows(records: Iterable[RolloutRecord]) -> Iterator[RolloutRecord]:
    """Yield each record slim. Values that it has in common with the first of its task and agent are held once."""
    first: dict[tuple[str, str, str], RolloutRecord] = {}
    for record in records:
        like = first.setdefault((record.run_id, record.task, str(record.agent.get("digest"))), record)
        if record is like or record.settings is like.settings:
            yield slim(record)
        else:
            same = {name: getattr(like, name) for name in _SHARED if getattr(record, name) == getattr(like, name)}
            yield slim(record, **same)


# Counts


def tokens_of(usage: Mapping[str, Any] | None) -> int | None:
    """Return the sum of input and output tokens; None if the usage does not say."""
    counts = [(usage or {}).get(key) for key in ("total_tokens", "input_tokens", "output_tokens")]
    total, *parts = [count if _is_count(count) else None for count in counts]
    return total if total is not None or None in parts else sum(part or 0 for part in parts)


def count_planned(rollouts: Iterable[tuple[str, str]]) -> dict[tuple[str, str], dict[str, int]]:
    """Count what a run is going to do, given the (agent, task) of every rollout selected. Each row carries it.

    Returns for each (agent, task): {"run": all rollouts selected, "agent": those of this agent, "tasks": this agent's
    tasks, "group": the samples of this task and agent}. With it a report made only from rows knows what never ran.
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
