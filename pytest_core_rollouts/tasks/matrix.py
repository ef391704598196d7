"""What is run: Agent (one column of the matrix) × task × sample = Rollout, and every name that is made of them.

All names are pure functions of the values they stand for: a name never depends on what else is in the matrix, so that
`--lf`, a resume or a second machine finds the same rollout under the same name.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from pytest_core_rollouts.tasks.task_settings import Network

if TYPE_CHECKING:
    from pytest_core_rollouts.tasks.harness_file import HarnessFile
    from pytest_core_rollouts.tasks.task import Task

DEFAULT = "default"

PROTOCOLS = ("anthropic", "responses", "chat_completions")
"""The wires on which a model provider can be spoken to."""

HARNESS_PROTOCOLS: Mapping[str, tuple[str, ...]] = {
    DEFAULT: PROTOCOLS,
    "codex": ("responses",),
    "claude_sdk": ("anthropic",),
    "mcode": PROTOCOLS,
    "oracle": (),
    "nop": (),
}
"""Every harness that can be named, and the protocols it speaks; `oracle` and `nop` use no model."""

MODELLESS = frozenset(name for name, protocols in HARNESS_PROTOCOLS.items() if not protocols)

CONTAINER_SIZES = ("small", "medium", "large")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SERVICE_TIERS = ("auto", "default", "flex", "priority", "fast", "ultrafast")
"""What OpenAI's service takes for a container, for the effort of reasoning, and for a tier."""

ROLLOUT_ID_LIMIT = 120
"""Characters of a rollout id: it goes into URLs, file names and, with its attempt, a 128-byte Idempotency-Key."""


class MatrixError(ValueError):
    """The agents asked for make no matrix; the message is one line that says which value and what to do."""


@lru_cache(maxsize=1024)
def slug(value: str, *, dots: bool = True) -> str:
    """`value` in `[A-Za-z0-9_-]` (and `.` unless `dots` is false), beginning and ending with a letter or digit.

    A slug that differs from its value carries 6 hex digits of the exact value's SHA-256, so that `a/b` and `a-b`
    never share a name.
    """
    kept = r"[^A-Za-z0-9_.-]+" if dots else r"[^A-Za-z0-9_-]+"
    plain = re.sub(kept, "-", value).strip("-._")
    if plain == value and plain:
        return plain
    return "-".join(filter(None, (plain, _hex(value, 6))))


@dataclass(frozen=True)
class Agent:
    """One column of the matrix: a harness, a model and all that the wire lets us vary.

    * `name`: that of an agent file. Without one, harness and model name the agent.
    * `base_url`: of its model's server. `{rollout_id}` and `{attempt}` in it are filled in.
    * `api_key_env`: the environment variable that holds the key for that server (default MODEL_API_KEY).
    * `api_key`: the key by value, in place of `api_key_env`. It is in no repr, digest or row.
    * `container_size` (CONTAINER_SIZES), `reasoning` (the effort, one of EFFORTS), `service_tier` (SERVICE_TIERS): only
      OpenAI's service has them.
    * `harness_file`: a program of this machine that is the harness; it names it. See `load_harness`.
    """

    harness: str = DEFAULT
    model: str = DEFAULT
    name: str | None = None
    protocol: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    instructions: str | None = None
    tools: Sequence[Any] = ()
    skills: Sequence[Any] = ()
    harness_config: Mapping[str, Any] = field(default_factory=dict)
    context_window: int | None = None
    max_output_tokens: int | None = None
    api_key: str | None = field(default=None, repr=False, compare=False)
    container_size: str | None = None
    reasoning: str | None = None
    service_tier: str | None = None
    harness_file: HarnessFile | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.harness_file is not None:
            object.__setattr__(self, "harness", self.harness_file.name)

    @property
    def where(self) -> str:
        """What messages call the agent."""
        return f"agent {self.name}" if self.name is not None else f"harness {self.harness}"

    @property
    def protocols(self) -> tuple[str, ...]:
        """The model protocols that the harness speaks; empty: it uses no model."""
        return (self.harness_file.protocol,) if self.harness_file is not None else HARNESS_PROTOCOLS[self.harness]

    @property
    def slug(self) -> str:
        """The agent's part of node ids and rollout ids."""
        return slug(self.name) if self.name is not None else f"{slug(self.harness)}-{slug(self.model)}"

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of everything about the agent except its name and key."""
        fields = {key: value for key, value in vars(self).items() if key not in ("name", "api_key", "harness_file")}
        for key in ("container_size", "reasoning", "service_tier"):
            if fields[key] is None:  # agents without it keep the digest that they had before it existed
                del fields[key]
        if self.harness_file is not None:
            fields["harness_file"] = self.harness_file.digest
        return hashlib.sha256(json.dumps(fields, sort_keys=True, default=_plain).encode()).hexdigest()

    def check(self) -> None:
        """Raise MatrixError where no Core could serve this agent."""
        where = self.where
        if self.harness_file is not None:
            self._check_harness_file(where)
        elif self.harness not in HARNESS_PROTOCOLS:
            raise MatrixError(
                f"{where}: unknown harness {self.harness!r}; known are {', '.join(HARNESS_PROTOCOLS)}, "
                "and the path of a harness file (NAME.yaml)"
            )
        for key, known in (
            ("container_size", CONTAINER_SIZES),
            ("reasoning", EFFORTS),
            ("service_tier", SERVICE_TIERS),
        ):
            if (value := getattr(self, key)) is not None and value not in known:
                raise MatrixError(f"{where}: invalid {key} {value!r}; choose from {', '.join(known)}")
        if self.base_url is None:
            if self.protocol is not None:
                raise MatrixError(f"{where}: a model protocol needs a model base URL (--model-base-url)")
            return
        if self.model == DEFAULT:
            raise MatrixError(f"{where}: a model base URL needs the model's name (--model)")
        self._check_protocol(where)

    def _check_harness_file(self, where: str) -> None:
        assert self.harness_file is not None
        path = self.harness_file.path
        if self.harness in HARNESS_PROTOCOLS:
            raise MatrixError(f"{path}: {self.harness} is the name of another harness; rename the file")
        if self.harness_config:
            raise MatrixError(f"{where}: takes no harness_config; write its parameters into {path}")
        if self.skills and self.harness_file.skills is None:
            raise MatrixError(
                f"{where}: has skills, but {path} does not say where its program looks for them; add `skills` there"
            )

    def _check_protocol(self, where: str) -> None:
        spoken = self.protocols
        if not spoken:
            raise MatrixError(f"{where}: uses no model, so it takes no model base URL")
        if self.protocol is None:
            if len(spoken) > 1:
                choice = ", ".join(spoken)
                raise MatrixError(f"{where}: speaks several protocols; choose one with --model-protocol: {choice}")
        elif self.protocol not in PROTOCOLS:
            raise MatrixError(f"{where}: unknown model protocol {self.protocol!r}; known are {', '.join(PROTOCOLS)}")
        elif self.protocol not in spoken:
            raise MatrixError(f"{where}: speaks {', '.join(spoken)}, not {self.protocol}")
        if self.harness == "mcode" and not (self.context_window and self.max_output_tokens):
            needed = "--rollout-context-window and --rollout-max-output-tokens"
            raise MatrixError(f"{where}: needs {needed} in addition to a model base URL")

    @property
    def effective_protocol(self) -> str | None:
        """The protocol on the wire: the one given, else the only one the harness speaks; None without a base URL."""
        if self.base_url is None:
            return None
        return self.protocol or self.protocols[0]


def check_distinct(agents: Sequence[Agent]) -> None:
    """Raise MatrixError where two agents would share a name."""
    seen: dict[str, Agent] = {}
    for agent in agents:
        if (other := seen.get(agent.slug)) is None:
            seen[agent.slug] = agent
        elif agent.name is None and other.name is None:
            raise MatrixError(f"harness {agent.harness} with model {agent.model} is named twice; name each value once")
        else:
            raise MatrixError(f"two agents are named {agent.slug!r}; give one of the agent files another `name`")


FailedTurns = Literal["missing", "zero"]


@dataclass(frozen=True)
class Rollout:
    """One sample of one task by one agent, with every setting resolved: what one Session will do."""

    task: Task
    agent: Agent
    sample: int
    run_id: str
    timeout: float = 900.0
    """Seconds, sandbox preparation included."""
    network: Network = field(default_factory=Network.disabled)
    retries: int = 1
    """How many further attempts an infrastructure error may cost."""
    failed_turns: FailedTurns | None = None
    """What a Turn counts as that failed for a reason which the Core does not name; None if the Core names them all."""
    stop: str | None = None
    """When its run stops early; None if it does not."""
    labels: Mapping[str, str] = field(default_factory=dict)
    model_params: Mapping[str, Any] = field(default_factory=dict)
    """What the embedded Core merges into each request to the model."""
    xfail: str | None = None
    """Why it is expected to fail; None where it is not."""
    attempt: int = 1
    """The attempt to begin with; more than 1 if earlier ones are spent."""
    group: str | None = None
    """The group's id, if the caller forms groups itself."""

    @property
    def name(self) -> str:
        """The item's name in a node id: agent and sample."""
        return f"{self.agent.slug}-{self.sample}"

    @property
    def group_id(self) -> str:
        """What the samples of one task by one agent share: a GRPO group."""
        return self.group or make_id(self.run_id, self.task.id, self.agent)

    @property
    def rollout_id(self) -> str:
        """Unique among all runs; `[A-Za-z0-9._-]`, at most 120 characters."""
        return make_id(self.run_id, self.task.id, self.agent, self.sample)

    def idempotency_key(self, attempt: int) -> str:
        """The key under which Core gives back the same Session, however often the attempt is sent."""
        return f"{self.rollout_id}-a{attempt}"

    def model_base_url(self, attempt: int) -> str | None:
        """The agent's base URL with this rollout's id and the attempt filled in; None without one."""
        url = self.agent.base_url
        return None if url is None else url.replace("{rollout_id}", self.rollout_id).replace("{attempt}", str(attempt))


RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}")
"""What a run's name looks like."""


def new_run_id(now: datetime | None = None) -> str:
    """A run's name: the UTC second and 4 random hex digits, such as `20261129T182233Z-1f0c`."""
    moment = (now or datetime.now(timezone.utc)).astimezone(timezone.utc)
    return f"{moment:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def run_began(run_id: str) -> datetime | None:
    """When a run began, read from its id; None for a name of another kind."""
    if not RUN_ID.fullmatch(run_id):
        return None
    try:
        return datetime.strptime(run_id[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return None


Chosen = tuple[str, Agent, int]
"""A rollout's task id, agent and sample."""


def name_rollouts(rollouts: Iterable[Chosen]) -> Iterator[str]:
    """Rollouts as lines such as `orders-json codex-default 0-3, 7`, one per task and agent."""
    ordered = sorted((task_id, agent.slug, sample) for task_id, agent, sample in rollouts)
    for (task_id, agent_slug), group in groupby(ordered, key=lambda one: one[:2]):
        yield f"{task_id} {agent_slug} {', '.join(_ranges([sample for _, _, sample in group]))}"


def _ranges(numbers: list[int]) -> Iterator[str]:
    """Ascending numbers as `0-3`, `7`."""
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        first, *rest = [number for _, number in run]
        yield f"{first}-{rest[-1]}" if rest else str(first)


def make_id(run_id: str, task_id: str, agent: Agent, sample: int | None = None) -> str:
    """Join the parts by dots; run and task hold none, a sample is digits, so no two rollouts can share an id."""
    group = f"{run_id}.{slug(task_id, dots=False)}.{agent.slug}"
    room = ROLLOUT_ID_LIMIT - 8  # a sample of up to seven digits and its dot
    if len(group) > room:
        group = f"{group[: room - 13]}-{_hex(group, 12)}"
    return group if sample is None else f"{group}.{sample}"


def _hex(value: str, digits: int) -> str:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:digits]


def _plain(value: object) -> object:
    """Mappings and sequences of any kind as JSON's own."""
    return dict(value) if isinstance(value, Mapping) else list(value)  # type: ignore[call-overload]
