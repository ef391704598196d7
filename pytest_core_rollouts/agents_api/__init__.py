"""The Agents API over HTTP, without pytest or tasks. httpx is imported when a Client is made, not before."""

from __future__ import annotations

from .address import is_loopback, normalize_base_url
from .client import Client
from .errors import (
    AgentsAPIError,
    APIStatusError,
    ConnectionFailed,
    DeadlinePassed,
    InvalidResponse,
    NotACore,
    ShortRead,
    StreamLost,
    TooLarge,
)
from .fault_policies import FaultPolicy
from .retry import RetryPolicy
from .types import Artifact, Event, Item, Session, Turn, TurnError, Usage

__all__ = [
    "APIStatusError",
    "AgentsAPIError",
    "Artifact",
    "Client",
    "ConnectionFailed",
    "DeadlinePassed",
    "Event",
    "FaultPolicy",
    "InvalidResponse",
    "Item",
    "NotACore",
    "RetryPolicy",
    "Session",
    "ShortRead",
    "StreamLost",
    "TooLarge",
    "Turn",
    "TurnError",
    "Usage",
    "is_loopback",
    "normalize_base_url",
]
