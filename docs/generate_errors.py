"""Writes `errors.md` from the tables of fault policies: run `python docs/generate_errors.py` after a change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_core_rollouts.agents_api.fault_policies import (
    RESPONSE_FAULTS,
    TURN_FAULTS,
    ClientFault,
    FaultPolicy,
    LocalFault,
    SessionFault,
)

HEAD = """\
# Errors

The tables are generated from the code (`docs/generate_errors.py`) and are what the code uses: `pytest_core_rollouts/agents_api/fault_policies.py`.

An infrastructure error is missing data: `reward` is null, never 0.
What the agent causes is reward 0, without another attempt.
A code that is in no table counts as an infrastructure error.

- **Same call**: whether the request is sent again.
  *while patient* means for two minutes after its first error, with pauses that grow from 0.5 to 15 s (half of each is random), or as long as `Retry-After` asks for, up to a minute.
  *a few times* means four times in all.
  Every repetition of a write has the same idempotency key.
  [OpenAI's service](openai.md#one-session-per-rollout) ignores it: there a Session is only created again if the list has none of this attempt.
  Time lost in this way extends the limit of the rollout, up to as much again, and is noted in `notes`.
- **New attempt**: whether the rollout may be run again in a new Session, up to `--rollout-retries` times (default 1).
  The errors of earlier attempts are in `notes`.
- **Run**: an error that every other rollout would have, too, stops the run.
  Nothing more starts, the remaining rollouts are reported as not run, and the exit code is 2.
  `--rollout-resume` continues from there.
  *stops, if a second rollout met it*: an error of the model's server only stops the run if a rollout of another task had the same one with the same agent file (in a run of one task, another rollout of it), both before their agents had used a tool.
  Otherwise one agent could stop the run with a request that it makes itself.
  *stops, if three tasks met it and no Session was created*: the Core refused the Sessions of three tasks (or of all, in a smaller run) of each agent with the same status, code and parameter, and has created none.
  Then it refuses what all rollouts ask for, and the message names the option to change.
  With `-n`, each worker counts separately.
- **Can the agent cause it?** Agents include policies in training, which learn whatever raises their mean reward.
  So a code with *yes* is reward 0; below each table is why the others are missing data.
- **Status, reward**: what the row has if no attempt succeeded.

"""

MANY = 5
"""A reason that holds for more codes than this is given for "all others" instead of listing them."""

OUTAGES = """\
## A Core that is down for everyone

A rollout whose Session can't be created is not given up while the Core creates no Session for any rollout.
It waits, so the rollouts behind it do not become errors, and continues when the Core is back.
The live display says what it waits for.
After an hour the run stops, and `--rollout-resume` continues it.
If the Core serves other rollouts, or at least answers, the error counts as this request's own after a second round of tries.

Turns in flight during an outage continue on the Core: the Turn list is polled again until twice the rollout's limit has passed.

## Throttled models

A Turn that fails with `rate_limit_exceeded`, `server_overloaded` or `flex_unavailable` halves the number of rollouts in flight; of rollouts that were in flight together, only the first counts.
Each Turn that ends otherwise raises the number again, by a tenth in all once every place has had a Turn.
The next attempt of a throttled rollout waits 5 s, twice as long each further time, up to a minute, and for a free place.
Rollouts that have not started come after it.
With `-n`, each worker counts separately.
"""


def errors_page() -> str:
    """Return the page as Markdown."""
    return "".join(
        (
            HEAD,
            _table("Answers of the server", "status and code", RESPONSE_FAULTS),
            _table("Calls without an answer, or with a wrong one", "fault", _by_name(ClientFault)),
            _table("Failed Turns", "code", TURN_FAULTS),
            _table("Sessions", "what happens", _by_name(SessionFault)),
            _table("On our side", "what happens", _by_name(LocalFault)),
            OUTAGES,
        )
    )


def _by_name(faults: type[ClientFault | SessionFault | LocalFault]) -> Mapping[str, FaultPolicy]:
    return {fault.value: fault.policy for fault in faults}


def _table(title: str, first: str, policies: Mapping[str, FaultPolicy]) -> str:
    columns = (first, "meaning", "same call", "new attempt", "run", "status", "reward", "can the agent cause it?")
    head = f"| {' | '.join(columns)} |\n{'| --- ' * len(columns)}|\n"
    rows = "".join(_row(name, policy) for name, policy in policies.items())
    return f"## {title}\n\n{head}{rows}\n{_reasons(policies)}\n"


def _reasons(policies: Mapping[str, FaultPolicy]) -> str:
    """Return a line for each reason why codes without a reward are missing data, with these codes."""
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
    stops = "stops, if three tasks met it and no Session was created" if policy.refuses else stops
    run = stops if policy.stops or policy.refuses else "slows down" if policy.throttles else "goes on"
    reward = "null" if policy.reward is None else f"{policy.reward:g}"
    attempt = "yes" if policy.attempt else "no"
    cells = (f"`{name}`", policy.what, policy.retry.value, attempt, run, f"`{policy.status}`", reward, policy.agent)
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    (Path(__file__).parent / "errors.md").write_text(errors_page(), encoding="utf-8")
