"""Writes `errors.md`, whose tables are made from the code: run `python docs/generate_errors.py` after a change."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

from pytest_core_rollouts.agents_api.fault_policies import (
    CLIENT_FAULTS,
    LOCAL_FAULTS,
    RESPONSE_FAULTS,
    SESSION_FAULTS,
    TURN_FAULTS,
    FaultPolicy,
)

K = TypeVar("K")

HEAD = """\
# What follows from an error

The tables are made from the code (`docs/generate_errors.py`), and the code goes by them:
`pytest_core_rollouts/agents_api/fault_policies.py`.

An error of the infrastructure is missing data: `reward` is null, never 0.
What the agent causes is reward 0, without another attempt.
What no table names is taken for infrastructure.

- **Same call**: whether the request is sent again. *while patient*: for two minutes after its first fault, with
  pauses that grow from 0.5 to 15 s (half of it by chance), or as long as `Retry-After` asks for, up to a minute; *a
  few times*: four times in all. Every try of a write carries the same idempotency key. Time lost like this is not the
  agent's: it extends the limit, up to as much again, and is told in `notes`.
- **New attempt**: whether the rollout may be run again in a new Session, `--rollout-retries` times (default 1). The
  faults of earlier attempts are in `notes`.
- **Run**: what every other rollout would meet too stops the run: nothing new starts, the rest is named as not run,
  exit code 2. `--rollout-resume` goes on from there.
  *stops, if a second rollout met it*: a fault of the model's server needs a rollout of another task that met the same
  with the same agent file (in a run of one task, another rollout of it), each before its agent had used a tool.
  Else one agent could stop the run with a request that it makes by hand. With `-n` each worker counts its own.
- **Can the agent cause it?** Agents include policies in training, which learn whatever raises their mean reward.
  So a code that is *yes* is reward 0; under each table stands why the others are missing data.
- **Status, reward**: what the row says if no attempt fixed it.

"""

MANY = 5
"""Codes of one reason, from which on they are not listed again."""

OUTAGES = """\
## A Core that is down for everyone

A Session that can't be created is not given up while the Core makes none for anybody: its place waits, so nothing
behind it in the queue is burned as an error, and goes on when the Core is back. The live display says what is waited
for. After an hour the run stops, and `--rollout-resume` goes on. Where the Core serves others, or at least answers,
the fault is the request's own after a second round of tries.

Turns in flight during an outage go on without us: the Turn list is asked again until twice the rollout's limit has
passed.

## Throttled models

A Turn that fails with `rate_limit_exceeded` or `server_overloaded` halves the number of rollouts in flight; of those
in flight together the first alone counts. Each Turn that ends otherwise raises it again, by a tenth in all once every
place has had its turn. The next attempt of a throttled rollout waits 5 s, twice as long after each further time, up
to a minute, and for a free place; rollouts that have not begun stand behind it. With `-n` each worker counts its own.
"""


def errors_page() -> str:
    """The page, as Markdown."""
    return "".join(
        (
            HEAD,
            _table("Answers of the server", "status and code", RESPONSE_FAULTS),
            _table("Calls without an answer, or with a wrong one", "fault", CLIENT_FAULTS),
            _table("Failed Turns", "code", TURN_FAULTS),
            _table("Sessions", "what happens", SESSION_FAULTS),
            _table("On our side", "what happens", LOCAL_FAULTS),
            OUTAGES,
        )
    )


def _table(title: str, first: str, table: Mapping[K, FaultPolicy]) -> str:
    policies = {str(key.value if isinstance(key, Enum) else key): policy for key, policy in table.items()}
    columns = (first, "meaning", "same call", "new attempt", "run", "status", "reward", "can the agent cause it?")
    head = f"| {' | '.join(columns)} |\n{'| --- ' * len(columns)}|\n"
    rows = "".join(_row(name, policy) for name, policy in policies.items())
    return f"## {title}\n\n{head}{rows}\n{_reasons(policies)}\n"


def _reasons(policies: Mapping[str, FaultPolicy]) -> str:
    """Why what gives no reward is missing data: a line for each reason, with the codes that it holds for."""
    codes: dict[str, list[str]] = {}
    for name, policy in policies.items():
        if policy.reward is None:
            codes.setdefault(policy.because, []).append(f"`{name}`")
    common = max(codes, key=lambda reason: len(codes[reason]))
    rest = codes.pop(common) if len(codes[common]) > MANY else []
    lines = [f"- {', '.join(names)}: {reason}\n" for reason, names in codes.items()]
    if rest:
        lines.append(f"- {'All others' if lines else 'All'}: {common}\n")
    return "Why these are missing data:\n\n" + "".join(lines)


def _row(name: str, policy: FaultPolicy) -> str:
    stops = "stops, if a second rollout met it" if policy.needs_witness else "stops"
    run = stops if policy.stops else "slows down" if policy.throttles else "goes on"
    reward = "null" if policy.reward is None else f"{policy.reward:g}"
    attempt = "yes" if policy.attempt else "no"
    cells = (f"`{name}`", policy.what, policy.retry.value, attempt, run, f"`{policy.status}`", reward, policy.agent)
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    (Path(__file__).parent / "errors.md").write_text(errors_page(), encoding="utf-8")
