"""The row that is kept of one rollout: its fields, and how they are written, masked, checked and read.

Each field stands once, in `RolloutRecord`. Its `Column` says which types it has, how it is masked, whether it is left
out of memory when only numbers are needed, and what it means; docs/records.md is generated from that.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pytest_core_rollouts.grading.answers import round_reward
from pytest_core_rollouts.records.columns import (
    Column,
    checked_value,
    column,
    is_count,
    is_finite,
    is_kept_file,
    is_object_or_none,
    is_string,
    masked_value,
)
from pytest_core_rollouts.records.jsonable import has_lone_surrogate, jsonable
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.records.why import why_text
from pytest_core_rollouts.strict_json import InvalidJSON, read_json

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


# The fields of a row

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
        metadata=column(
            "`<run_id>.<task>.<agent>.<sample>`, at most 120 characters of `[A-Za-z0-9._-]`", _TEXT, "nothing"
        )
    )
    task: str = field(metadata=column("the task's id", _TEXT, shared=True))
    harness: str = field(metadata=column("the agent's harness; `default` if none was named", _TEXT, shared=True))
    model: str = field(metadata=column("the agent's model; `default` if none was named", _TEXT, shared=True))
    sample: int = field(metadata=column("the sample's number, from 0", _COUNT, "nothing"))
    session_id: str | None = field(
        default=None,
        metadata=column("the Core's Session, deleted after the rollout; null if none was created", (*_TEXT, *_OR_NONE)),
    )
    status: Status = field(
        metadata=column("`completed`, `failed`, `cancelled`, `timeout` or `error`", _TEXT, "nothing")
    )
    reward: float | None = field(
        metadata=column(
            "0 to 1, or null if the rollout says nothing about the agent", (int, float, *_OR_NONE), "nothing"
        )
    )
    answer: Any = field(default=None, metadata=column("the parsed `answer.json`, or null", large=True))
    duration_s: float | None = field(
        default=None,
        metadata=column(
            "seconds from creating the Session to the end of its Turn; null if no Session was created",
            (int, float, *_OR_NONE),
            "nothing",
        ),
    )
    usage: Mapping[str, Any] | None = field(
        default=None,
        metadata=column(
            "token counts of the last Turn as the Core returned them; null means unknown, not zero",
            (*_OBJECT, *_OR_NONE),
        ),
    )
    items: Sequence[Any] | None = field(
        default=None,
        metadata=column(
            "the trajectory, every Item in order as returned; null with `--rollout-items none`, and with `files`, "
            "which stores it in its own file",
            (*_LIST, *_OR_NONE),
            "fields",
            large=True,
        ),
    )
    error: str | None = field(default=None, metadata=column("what failed, or null", (*_TEXT, *_OR_NONE), "messages"))

    schema: int = field(default=SCHEMA, metadata=column(f"version of this format: {SCHEMA}", (), "nothing"))
    run_id: str = field(metadata=column("the run", _TEXT, "nothing", shared=True))
    group_id: str = field(metadata=column("the id that all samples of one task by one agent share", _TEXT, "nothing"))
    agent: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=column(
            "`name` (of an agent file), `slug`, `digest` (SHA-256 of everything about it except its name)",
            _OBJECT,
            shared=True,
        ),
    )
    labels: Mapping[str, str] = field(
        default_factory=dict, metadata=column("from `--rollout-label`", _OBJECT, shared=True)
    )
    attempt: int = field(
        default=0,
        metadata=column(
            "1, or more if earlier attempts failed because of the infrastructure; `notes` has their errors",
            _COUNT,
            "nothing",
        ),
    )
    started_at: str | None = field(default=None, metadata=column("ISO 8601, in UTC", (*_TEXT, *_OR_NONE), "nothing"))
    timings: Mapping[str, float] = field(
        default_factory=dict,
        metadata=column("seconds for `create`, `prepare` (the sandbox), `turn`, `fetch`", _OBJECT, "nothing"),
    )
    settings: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=column(
            "what the rollout ran with: timeout, network, protocol, base URL, tolerance, versions; never a key. "
            "`core`: the Core's URL, or `embedded`; `pass_threshold`: the smallest reward that passes, if it is not 1; "
            "`xfail`: it was expected to fail, and "
            "no gate counts it; `container_size`: that of the sandbox on OpenAI's service; "
            "`failed_turns`: `zero` if a Turn that failed for an unnamed reason counts as reward "
            "0; `stop`: when the run stops early (`--rollout-stop`); "
            "`replay_of`: the file, run and rollout whose answer was graded again",
            _OBJECT,
            "fields",
            shared=True,
        ),
    )
    input_digest: str = field(
        default="", metadata=column("SHA-256 of what the agent got", _TEXT, "nothing", shared=True)
    )
    grading_digest: str = field(default="", metadata=column("SHA-256 of what grades it", _TEXT, "nothing", shared=True))
    reasons: Sequence[Any] = field(
        default=(), metadata=column("`{path, expected, answered}` for each place that differs", _LIST, large=True)
    )
    answer_text: str | None = field(
        default=None,
        metadata=column("up to 64 KiB of an answer that is not JSON", (*_TEXT, *_OR_NONE), large=True),
    )
    outputs: Sequence[Any] = field(
        default=(),
        metadata=column(
            "files that the agent made and that were kept: `[{path, size, sha256, file}]`; `path` below "
            "`/workspace/outputs`, `file` relative to the JSONL ([tasks](tasks.md#answers-beyond-one-json))",
            _LIST,
            entries=("kept files", is_kept_file),
        ),
    )
    items_file: Mapping[str, Any] | None = field(
        default=None,
        metadata=column(
            "where the trajectory is with `--rollout-items files`: `{file, items, size, sha256}`, `file` relative to "
            "the JSONL; else null",
            (*_OBJECT, *_OR_NONE),
        ),
    )
    notes: Sequence[str] = field(
        default=(),
        metadata=column("further remarks, each a sentence", _LIST, "messages", entries=("strings", is_string)),
    )
    planned: Mapping[str, int] = field(
        default_factory=dict,
        metadata=column(
            "how many rollouts were planned for the run, the agent and the group, and how many tasks for the agent",
            _OBJECT,
            "nothing",
            entries=("counts", is_count),
            shared=True,
        ),
    )
    request_ids: Mapping[str, str] = field(
        default_factory=dict,
        metadata=column("the last `X-Request-Id` of each kind of call", _OBJECT, large=True),
    )
    answer_json: str | None = field(
        default=None,
        metadata=column(
            "the JSON text of an answer that `answer` can't show as it was, so that it can be graded again: one with a "
            "lone surrogate, which many readers refuse (`answer` then shows the escapes), or `null`; else null",
            (*_TEXT, *_OR_NONE),
            "nothing",
            large=True,
        ),
    )
    masked: bool = field(
        default=False,
        metadata=column(
            "true if a known secret was masked in the answer or in a kept file, so that a replay can't grade them "
            "again and keeps the reward",
            (bool,),
            "nothing",
        ),
    )
    spent: int | None = field(
        default=None,
        metadata=column(
            "input and output tokens of all attempts, with those that failed because of the infrastructure; null means "
            "unknown",
            (*_COUNT, *_OR_NONE),
            "nothing",
        ),
    )
    why: str | None = field(
        default=None,
        metadata=column(
            "why the reward is not 1, in one line of at most 120 characters: "
            "`total: 324 expected, 342 answered (+2 more)`; null if it is 1",
            (*_TEXT, *_OR_NONE),
            "messages",
        ),
    )
    split: str | None = field(
        default=None,
        metadata=column(
            "SHA-256 (hex) of how the run was divided into shards, equal in all of them; null if it was not",
            (*_TEXT, *_OR_NONE),
            "nothing",
        ),
    )
    tags: Sequence[str] = field(
        default=(),
        metadata=column("the task's tags", _LIST, "nothing", entries=("strings", is_string), shared=True),
    )
    metrics: Mapping[str, float] = field(
        default_factory=dict,
        metadata=column(
            "further numbers of the grader, by name; they are reported and never count",
            _OBJECT,
            entries=("finite numbers", is_finite),
        ),
    )
    earlier_usage: Sequence[Mapping[str, Any] | None] = field(
        default=(),
        metadata=column(
            "token counts of the attempts before the last one, like `usage`; null for one that is unknown",
            _LIST,
            entries=("objects and null", is_object_or_none),
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
            plain, row = row, {name: masked_value(COLUMNS[name], value, masks) for name, value in row.items()}
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
                row["answer"] = read_json(
                    checked_value("answer_json", COLUMNS["answer_json"], row["answer_json"]).encode()
                )
                row["answer_json"] = None if row["answer"] is not None else "null"  # the others are written again
            values = ((name, row[name]) for name in COLUMNS if name in row)
            return cls(
                **{
                    name: one if type(one) in _PLAIN[name] else checked_value(name, COLUMNS[name], one)
                    for name, one in values
                }
            )
        except (TypeError, ValueError) as error:
            raise RecordsError(
                f"not a rollout record: {str(error).removeprefix('RolloutRecord.__init__() ')}"
            ) from None


COLUMNS: dict[str, Column] = {entry.name: entry.metadata["column"] for entry in dataclasses.fields(RolloutRecord)}
"""All fields of a row, in their order."""
_PLAIN = {
    name: frozenset(() if column.entries or name == "agent" else column.types) - {int, float}
    for name, column in COLUMNS.items()
}
"""The types of a field whose every value is right, so that most values need no call."""


def parse_row(line: bytes) -> Any:
    """Return the value of a line. Raises NotJSON."""
    try:
        return read_json(line)
    except InvalidJSON as error:
        raise NotJSON(f"not JSON ({error.problem})") from None


def tokens_of(usage: Mapping[str, Any] | None) -> int | None:
    """Return the sum of input and output tokens; None if the usage does not say."""
    counts = [(usage or {}).get(key) for key in ("total_tokens", "input_tokens", "output_tokens")]
    total, *parts = [count if is_count(count) else None for count in counts]
    return total if total is not None or None in parts else sum(part or 0 for part in parts)
