"""Random faults at every step of every rollout, by a seed; and what the server knows to have happened, to compare with.

What happens to an attempt, and to each of its requests, only depends on the seed, the rollout and the request's number,
never on the order in which requests happen to arrive.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.fake_core import FakeCore, FakeSession, Fault, Request, Script

MARK = "expected-4b1d7c"
"""Stands in what is expected, and in right answers: it may be in no request."""
RIGHT = json.dumps({"x": 1, "mark": MARK}).encode()
WRONG = json.dumps({"x": 2, "mark": MARK}).encode()
NONE = b""

AGENTS_DOING = ("context_length_exceeded", "max_output_tokens", "cyber_policy", "session_budget_exceeded")
INFRASTRUCTURE = ("server_error", "sandbox_error", "internal_error", "connection_failed", "a_code_of_next_year")
THROTTLED = ("rate_limit_exceeded", "server_overloaded")


def _failing(code: str) -> Script:
    return Script(turn_status="failed", error={"code": code, "message": "It \x1b[31mbroke.\x00"})


FATES: list[tuple[int, str, Script]] = [
    (46, "right", Script(answer=RIGHT)),
    (14, "wrong", Script(answer=WRONG)),
    (2, "no answer", Script()),
    (2, "no JSON", Script(answer=b"```json\n{}\n```\xff")),
    (1, "too large", Script(answer=b" " * 2_000_000)),
    (2, "right, settles slowly", Script(answer=RIGHT, settle_seconds=0.6)),
    (2, "right, when cancelled", Script(answer=RIGHT, never_ends=True, completes_on_cancel=True)),
    (3, "never ends", Script(never_ends=True, cancel_seconds=0.2)),
    (1, "never ends, heeds no cancel", Script(never_ends=True, ignore_cancel=True)),
    *((1, f"fails by {code}", _failing(code)) for code in (*AGENTS_DOING, *INFRASTRUCTURE, *THROTTLED)),
    (2, "no Turn", Script(session_failure="no room")),
    (1, "no sandbox", Script(prepare_seconds=None)),
    (1, "wants a function result", Script(requires_action=True)),
    (1, "unknown Turn status", Script(turn_status="hibernating")),
    (1, "unknown Session status", Script(never_ends=True, session_status="dreaming")),
    (1, "cancelled by someone else", Script(turn_status="cancelled")),
]
STREAMS = ("live",) * 6 + ("silent", "dropped", "dropped", "scrambled")

HTML = {"Content-Type": "text/html"}
FAULTS: dict[str, Fault] = {
    "reset": Fault(reset=True),
    "reset, processed": Fault(reset=True, processed=True),
    "hang": Fault(hang=True),
    "429": Fault(429),
    "429, Retry-After": Fault(429, headers={"Retry-After": "0.3"}),
    "408": Fault(408),
    "500": Fault(500, b'{"error": {"type": "server_error", "message": "\\u001b[2J", "code": null, "param": null}}'),
    "500, processed": Fault(500, processed=True),
    "502 HTML": Fault(502, b"<html><h1>Bad Gateway</h1>", HTML),
    "503, Retry-After": Fault(503, headers={"Retry-After": "0.2"}),
    "200 HTML": Fault(200, b"<!doctype html>", HTML),
    "200 empty": Fault(200),
    "200 half a JSON": Fault(200, b'{"object": "list", "data": ['),
    "cut, length": Fault(cut=7),
    "cut, chunked": Fault(cut=7, framing="chunked"),
    "cut, close": Fault(cut=7, framing="close"),
    "cut, reset": Fault(cut=7, reset_after_cut=True),
    "late": Fault(delay=0.4),
}
LIMIT = 6.0
"""Seconds that a rollout may take."""
CHANCE = 0.1
"""Of a request to meet a fault."""


@dataclass
class Chaos:
    """A FakeCore's `script` and `fault`, and its truth."""

    core: FakeCore
    seed: int
    met: Counter[str] = field(default_factory=Counter)
    """How often which fault was met, requests' and Sessions'."""
    fates: dict[str, str] = field(default_factory=dict)
    """By idempotency key."""
    _asked: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.core.script, self.core.fault = self.script, self.fault
        self._calm = False

    def calm(self) -> None:
        """No more faults of requests: for what is checked after the storm."""
        self._calm = True

    def script(self, body: Mapping[str, Any]) -> Script:
        rollout_id = body["metadata"]["rollout_id"]
        key = f"{rollout_id}-a{len(self.of(rollout_id)) + 1}"
        dice = random.Random(f"{self.seed}/{_without_run(key)}")
        [(_, name, script)] = dice.choices(FATES, [weight for weight, *_ in FATES])
        if self._calm:
            name, script = "right", Script(answer=RIGHT)
        self.fates[key] = name
        if name not in ("right", "wrong"):
            self.met[name] += 1
        stream = dice.choice(STREAMS)
        if stream != "live":
            self.met[f"stream {stream}"] += 1
        changes: dict[str, Any] = {"stream": stream, "turn_seconds": dice.random() * 0.5}
        if script.prepare_seconds is not None:
            changes["prepare_seconds"] = dice.random() * 0.3
        usage = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
        return Script(**{**vars(script), **changes, "usage": dice.choice([None, usage]), "items": ITEMS})

    def fault(self, request: Request) -> Fault | None:
        about = request.header("idempotency-key") or request.session_id or "the list"
        self._asked[about, request.route] += 1
        if self._calm:
            return None
        session = self.core.sessions.get(about)
        who = _without_run((session.key if session is not None else None) or about)
        dice = random.Random(f"{self.seed}/{who}/{request.route}/{self._asked[about, request.route]}")
        if dice.random() >= CHANCE:
            return None
        name = dice.choice(list(FAULTS))
        self.met[name] += 1
        return FAULTS[name]

    # ---- the truth

    @property
    def injected(self) -> int:
        return sum(self.met.values())

    def of(self, rollout_id: str) -> list[FakeSession]:
        """The Sessions of a rollout's attempts."""
        return [one for one in self.core.sessions.values() if one.metadata["rollout_id"] == rollout_id]


def _without_run(key: str) -> str:
    """A key without the run's id, which differs from run to run."""
    return key.partition(".")[2] or key


ITEMS = (
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "\x1b]0;x\x07\ud835<b>"}]},
)


def false_rewards(chaos: Chaos, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows whose reward is not what the server knows the agent to have earned."""
    found = []
    for row in rows:
        session = chaos.core.sessions.get(row["session_id"] or "")
        truth = None if session is None else _earned(session, row["status"])
        if row["reward"] != truth:
            found.append(f"{row['rollout_id']}: {row['status']} {row['reward']}, truth {truth}: {row['error']}")
    return found


def _earned(session: FakeSession, status: str) -> float | None:
    turn = session.turn
    if turn is None:
        return None
    if status == "completed":
        return float(session.script.answer == RIGHT) if turn["status"] == "completed" else None
    if status == "timeout":
        [created] = [at for at, what in session.history if what == "created"]
        ended = [at for at, what in session.history if what in ("completed", "failed", "cancelled")]
        return 0.0 if not ended or ended[0] - created >= LIMIT - 0.5 else None
    if status == "failed":
        own = session.script.requires_action or (turn["error"] or {}).get("code") in AGENTS_DOING
        return 0.0 if own else None
    return None


def spoiled_for_nothing(chaos: Chaos, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows without a reward although the agent earned one in every attempt: faults of requests cost no result."""
    rewarded = {"right", "wrong", "no answer", "no JSON", "too large", "never ends", "right, settles slowly"}
    fates: dict[str, list[str]] = defaultdict(list)
    for key, fate in chaos.fates.items():
        fates[key.rpartition("-a")[0]].append(fate)
    return [
        f"{row['rollout_id']}: {row['error']}"
        for row in rows
        if row["reward"] is None and fates[row["rollout_id"]] and set(fates[row["rollout_id"]]) <= rewarded
    ]


def unnamed(chaos: Chaos, text: str) -> list[str]:
    """Sessions that were left and that the run did not name."""
    return [session.id for session in chaos.core.sessions.values() if not session.deleted and session.id not in text]
