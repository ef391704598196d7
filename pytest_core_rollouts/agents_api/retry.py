"""When a call is tried again, and how long to wait before that: the whole policy, in one place.

Every call of this client can be repeated: reads change nothing, a create carries its idempotency key, a cancel and a
delete are idempotent. (Where a server ignores the key, `rollout.session_adoption` looks for the Session first.)
Whether a call is repeated depends on the fault (`Retry` in `fault_policies`):

    while patient   no answer (refused, reset, timed out, cut off), 408, 429, 5xx: until `patience` has passed
    a few times     a success with a wrong body (not JSON, too few bytes): `wrong_body_tries` times in all
    never           any other status, a body over its limit, a server that is not a Core

No try starts after the client's deadline.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Protocol, TypeVar

from .errors import AgentsAPIError, APIStatusError, DeadlinePassed
from .fault_policies import Retry

__all__ = ["Budget", "RetryPolicy", "retry_after_seconds", "retrying", "unix_time"]

T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """How patient a client is. All times are in seconds.

    Tests replace `sleep`, `clock` (monotonic) and `chance` (uniform in [0, 1)).
    """

    patience: float = 120.0  # after a call's first fault, how long further tries may start
    first_pause: float = 0.5  # doubles with every fault of the call ...
    longest_pause: float = 15.0  # ... up to this
    longest_retry_after: float = 60.0  # if a server asks for a longer pause, it gets this one
    wrong_body_tries: int = 4
    connect_timeout: float = 10.0
    read_timeout: float = 60.0  # between two reads, and between two writes
    try_timeout: float = 180.0  # one whole try, body included: a server that sends a byte now and then ends here
    stream_silence: float = 45.0  # an event stream without a line for this long is dead (keepalives: every 15 s)
    refused_is_final: bool = False  # whether a server that refuses connections won't come back
    sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep, repr=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    chance: Callable[[], float] = field(default=random.random, repr=False)

    def may_retry(self, fault: AgentsAPIError, tries: int) -> bool:
        """Whether the call is tried again after `fault`, which ended try number `tries` (from 1)."""
        retry = fault.policy.retry
        return retry is Retry.WHILE_PATIENT or (retry is Retry.A_FEW_TIMES and tries < self.wrong_body_tries)

    def pause(self, fault: AgentsAPIError, tries: int) -> float:
        """Return the seconds to wait after try number `tries` (from 1), at least what the server asked for.

        A random part keeps clients that were refused at the same time from coming back at the same time.
        """
        asked = fault.retry_after if isinstance(fault, APIStatusError) else None
        if asked is not None:
            asked = min(asked, self.longest_retry_after)
            return asked + self.chance() * max(self.first_pause, asked / 4)
        backoff = min(self.longest_pause, self.first_pause * 2.0 ** min(tries - 1, 30))
        return backoff * (0.5 + self.chance() / 2)


class Budget(Protocol):
    """The attributes of a client that `retrying` reads and writes."""

    deadline: float | None
    waited_s: float
    waited_for: AgentsAPIError | None
    trouble: AgentsAPIError | None


async def retrying(policy: RetryPolicy, budget: Budget, attempt: Callable[[], Awaitable[T]]) -> T:
    """Call `attempt` until it returns. Raises its fault if it may not be tried again.

    The time lost to faults (failed tries and the pauses after them) is added to `budget.waited_s`.
    `budget.waited_for` is the last of those faults; `budget.trouble` is set during the pause after it.
    """
    started = policy.clock()
    first_fault: float | None = None
    previous: AgentsAPIError | None = None
    tries = 0
    try:
        while True:
            tries += 1
            began = policy.clock()
            try:
                return await attempt()
            except AgentsAPIError as fault:
                now = policy.clock()
                fault.tries, fault.elapsed_s = tries, now - started
                if isinstance(fault, DeadlinePassed):
                    fault.previous = previous  # it used up the time
                if not policy.may_retry(fault, tries):
                    raise
                previous = budget.waited_for = fault
                budget.waited_s += now - began
                first_fault = now if first_fault is None else first_fault
                pause = policy.pause(fault, tries)
                resume = now + pause
                if resume > first_fault + policy.patience or (budget.deadline is not None and resume > budget.deadline):
                    raise
                budget.trouble = fault
            await policy.sleep(pause)
            budget.waited_s += policy.clock() - now
    finally:
        budget.trouble = None


def retry_after_seconds(value: str | None, server_date: str | None, now: float) -> float | None:
    """Return the seconds that a Retry-After header asks for; None if it is missing or invalid.

    A date is compared with the server's own Date header if there is one, because clocks differ. `now` is Unix time.
    """
    if value is None:
        return None
    if re.fullmatch(r"\s*[0-9]{1,9}(\.[0-9]{1,9})?\s*", value):
        return float(value)
    until = unix_time(value)
    if until is None:
        return None
    since = unix_time(server_date) if server_date else None
    return max(0.0, until - (now if since is None else since))


def unix_time(date: str) -> float | None:
    """Return the Unix time of a date in an HTTP header; None if it is invalid."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
